"""Every family of metrics shows of an ordinary program what the program and torch have counted of it themselves."""

from __future__ import annotations

import pytest

from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from tests.figures.families import PROGRAM_FAMILIES
from tests.figures.running import Run

DEFINED = [metric.name for metric in (*NUMBER_METRICS, *HISTOGRAM_METRICS)]


@pytest.mark.parametrize("family", DEFINED)
def test_family(run: Run, family: str) -> None:
    """The family shows what was counted without us, and nothing that the program does not do."""
    PROGRAM_FAMILIES[family](run)


def test_no_others(run: Run) -> None:
    """The pages have no families but these, and each of these is expected to show something definite."""
    assert (run.live.names | run.final.names) <= {*DEFINED}
    assert PROGRAM_FAMILIES.keys() == {*DEFINED}
