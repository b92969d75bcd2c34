"""Histories of tapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.analysis.critical_path.analysis import critical_path_of
from otel_torchdist.analysis.statistics.compute import statistics_of
from otel_torchdist.sources.history.tapes import history_of
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.tapes import begin, new_writer


@pytest.mark.parametrize("field", ["entered_ns", "sequence"])
def test_impossible_numbers(memory: Path, field: str) -> None:
    """Records with impossible numbers, as forged ones, are lost, also those of steps; the others are read."""
    writer = new_writer(memory)
    begin(writer)
    begin(writer, **{field: 1 << 63})
    begin(writer)
    writer.step_ended(1, 1 << 63, 1)
    history = history_of(TapeReader.of_writer(writer))
    assert [view.record.number for view in history.operations] == [1, 3]
    assert (history.lost, history.steps) == (2, ())
    assert statistics_of([history]).ranks[0].calls == 2
    critical_path_of([history])
