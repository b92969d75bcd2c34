"""Healthy jobs that wait for longer than the threshold: nothing is reported about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist import semconv
from tests.jobs.faults.faulty_job import THRESHOLD_S, FaultyJob

WORKER = Path(__file__).parent / "workers" / "patient.py"
LONG_S = 2 * THRESHOLD_S
PATIENT = {"LONG_S": str(LONG_S)}


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("evaluation", {}),
        pytest.param(
            "download", {"OTEL_PYTHON_TORCHDIST_STALL_IGNORE": "patient.py:download"}, marks=pytest.mark.thorough
        ),
        pytest.param("requests", {}, marks=pytest.mark.thorough),
        pytest.param("debugger", {}, marks=pytest.mark.thorough),
    ],
)
def test_nothing_is_reported(start: Callable[..., FaultyJob], case: str, settings: dict[str, str]) -> None:
    """A wait of twice the threshold that is expected or to be ignored is not reported, and the job ends well."""
    job = start(case, worker=WORKER, environ=PATIENT | settings)
    assert [done.code for done in job.join()] == [0, 0, 0]
    spans = job.receiver.wait_for(lambda spans: any(span.name == "init_process_group" for span in spans))
    assert [span.name for span in spans if semconv.STALLED in span.attributes] == []


@pytest.mark.thorough
def test_repeated_checkpoint_is_reported_once(start: Callable[..., FaultyJob]) -> None:
    """A routine wait is reported only the first time, when it is not known to be routine."""
    job = start("checkpoint", worker=WORKER, environ={"LONG_S": str(LONG_S + THRESHOLD_S)})  # the verdict has its time
    assert [done.code for done in job.join()] == [0, 0, 0]
    job.receiver.wait_for(lambda spans: any(semconv.STALL_RESOLVED in span.attributes for span in spans))
    assert len({root.trace_id for root in job.roots()}) == 1
    assert {root.attributes[semconv.VERDICT_RANKS] for root in job.roots()} == {"0"}
    assert len({root.attributes[semconv.SEQUENCE] for root in job.roots()}) == 1
