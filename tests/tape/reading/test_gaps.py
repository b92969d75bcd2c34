"""Numbers that were reserved and are not committed: waited for, then skipped, never delivered twice."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import How
from otel_torchdist.tape import layout
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.writer import TapeWriter
from tests.support.tapes.tapes import begin
from tests.support.waiting import until


class Uncommitted:
    """A tape on which number 9 is reserved and not committed, as while its thread waits for a core; 10 is committed.

    A reader has seen numbers 1 to 8; number 1 is open and has moved to the refuge.
    """

    def __init__(self, writer: TapeWriter) -> None:
        self.writer = writer
        self.reader = TapeReader.of_writer(writer)
        begin(writer)
        for _ in range(7):
            writer.complete(begin(writer), 1_000, 1_001, How.CALL)
        assert numbers(self.reader) == [*range(1, 9)]
        begin(writer, sequence=99)
        self.commit(0, of=9)
        assert begin(writer, sequence=10) == 10

    def commit(self, number: int, *, of: int) -> None:
        """Store the word by which readers see that a record is written: its number, or 0 until then."""
        slot = layout.RING_OFFSET + of % self.writer.identity.capacity * layout.RECORD_SIZE
        self.writer.view().cast("Q")[slot // 8] = number


@pytest.fixture
def gap(small_writer: TapeWriter) -> Uncommitted:
    """A tape with such a gap."""
    return Uncommitted(small_writer)


def numbers(reader: TapeReader) -> list[int]:
    """Numbers of the operations that a poll finds."""
    return [operation.number for operation in reader.poll().entered]


def test_slow_thread_is_waited_for(gap: Uncommitted) -> None:
    """Records after a gap wait for it, and then both come in order."""
    assert numbers(gap.reader) == []
    assert numbers(gap.reader) == []
    gap.commit(9, of=9)
    assert [(operation.number, operation.sequence) for operation in gap.reader.poll().entered] == [(9, 99), (10, 10)]
    assert gap.reader.lost == 0


def test_dead_thread_is_skipped(gap: Uncommitted) -> None:
    """After a second the gap counts as lost; if it is written after all, that does no harm."""
    began = time.monotonic()
    assert until(lambda: numbers(gap.reader)) == [10]
    assert time.monotonic() - began > 1
    assert gap.reader.lost == 1
    gap.commit(9, of=9)
    gap.writer.complete(begin(gap.writer), 1_000, 1_001, How.CALL)
    assert (numbers(gap.reader), gap.reader.lost) == ([11], 1)


def test_end_behind_a_gap(gap: Uncommitted) -> None:
    """An end behind a gap is waited for: its operation is not given up meanwhile."""
    gap.commit(9, of=9)
    assert numbers(gap.reader) == [9, 10]
    assert begin(gap.writer) == 11
    gap.commit(0, of=11)
    assert gap.writer.complete(1, 1_000, 5_000, How.WAIT)
    for _ in range(5):
        assert not gap.reader.poll().ended
    gap.commit(11, of=11)
    assert [operation.number for operation in gap.reader.poll().ended] == [1]
    assert gap.reader.lost == 0


def test_gap_of_a_dead_process(gap: Uncommitted, memory: Path) -> None:
    """In the tape of a process that is gone there is nothing to wait for."""
    path = memory / "copy.tape"
    shutil.copy(gap.writer.path, path)
    reader = TapeReader(path)
    assert numbers(reader) == [1, *range(3, 9), 10]
    assert reader.lost == 2, "the gap, and number 2, which 10 has overwritten"
    reader.close()
