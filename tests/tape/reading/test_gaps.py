"""Numbers that were reserved and are not committed: waited for, then skipped, never delivered twice."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import How
from otel_torchdist.tape.reading import reader as reader_module
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.tapes import begin, new_writer
from tests.support.waiting import until


class StuckThread:
    """A thread that has reserved number 9 and is blocked before it can write it, until the test releases it.

    A reader has seen numbers 1 to 8, of which 1 is open; 10 is written.
    """

    def __init__(self, directory: Path) -> None:
        self.writer = new_writer(directory)
        self.reader = TapeReader.of_writer(self.writer)
        self._lock = self.writer._lap_lock  # needed by its next step: its slot holds an open operation
        self._thread = threading.Thread(target=begin, args=(self.writer,), kwargs={"sequence": 99}, daemon=True)

    def __enter__(self) -> StuckThread:
        begin(self.writer)
        for _ in range(7):
            self.writer.complete(begin(self.writer), 1_000, 1_001, How.CALL)
        assert numbers(self.reader) == [*range(1, 9)]
        self._lock.acquire()
        self._thread.start()
        assert until(lambda: repr(self.writer._numbers) == "count(10)")
        assert begin(self.writer, sequence=10) == 10
        return self

    def go_on(self) -> None:
        """Let it write its record."""
        self._lock.release()
        self._thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.go_on()


@pytest.fixture
def stuck(memory: Path) -> Iterator[StuckThread]:
    """A blocked thread."""
    with StuckThread(memory) as thread:
        yield thread


def numbers(reader: TapeReader) -> list[int]:
    """Numbers of the operations that a poll finds."""
    return [operation.number for operation in reader.poll().entered]


def test_slow_thread_is_waited_for(stuck: StuckThread) -> None:
    """Records after a gap wait for it, and then both come in order."""
    assert numbers(stuck.reader) == []
    assert numbers(stuck.reader) == []
    stuck.go_on()
    assert [(operation.number, operation.sequence) for operation in stuck.reader.poll().entered] == [(9, 99), (10, 10)]
    assert stuck.reader.lost == 0


def test_dead_thread_is_skipped(stuck: StuckThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the bound the gap counts as lost; if it is written after all, that does no harm."""
    monkeypatch.setattr(reader_module, "UNCOMMITTED_BOUND_S", 0.2)
    began = time.monotonic()
    entered: list[int] = []
    while not entered and time.monotonic() < began + 20:
        entered = numbers(stuck.reader)
    assert time.monotonic() - began > 0.2
    assert (entered, stuck.reader.lost) == ([10], 1)
    stuck.go_on()
    stuck.writer.complete(begin(stuck.writer), 1_000, 1_001, How.CALL)
    assert (numbers(stuck.reader), stuck.reader.lost) == ([11], 1)


def test_end_behind_a_gap(stuck: StuckThread) -> None:
    """An end behind a gap is waited for: its operation is not given up meanwhile."""
    stuck.go_on()  # the first operation is in the refuge from now on
    assert numbers(stuck.reader) == [9, 10]
    assert begin(stuck.writer) == 11
    words = stuck.writer.view().cast("Q")
    number = (layout.RING_OFFSET + (11 % 8) * layout.RECORD_SIZE) // 8
    words[number] = 0  # as if its thread had not come so far
    assert stuck.writer.complete(1, 1_000, 5_000, How.WAIT)
    for _ in range(5):
        assert not stuck.reader.poll().ended
    words[number] = 11
    assert [operation.number for operation in stuck.reader.poll().ended] == [1]
    assert stuck.reader.lost == 0


def test_gap_of_a_dead_process(stuck: StuckThread, memory: Path) -> None:
    """In the tape of a process that is gone there is nothing to wait for."""
    path = memory / "copy.tape"
    shutil.copy(stuck.writer.path, path)
    reader = TapeReader(path)
    assert numbers(reader) == [1, *range(3, 9), 10]
    assert reader.lost == 2, "the gap, and number 2, which 10 has overwritten"
    reader.close()
