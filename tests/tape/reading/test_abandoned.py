"""Records of calls that are over, though no end was recorded, do not stay open for readers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from otel_torchdist.tape.layout import Flag, How, RecordKind, Word
from otel_torchdist.tape.reading.abandoned import GRACE_NS
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.writer import TapeWriter
from tests.support.tapes.tapes import new_writer

pytestmark = pytest.mark.usefixtures("memory")
LONG_AGO_NS = 3 * GRACE_NS


def begin(
    tape: TapeWriter, *, thread: int = 7, flags: int = 0, kind: int = RecordKind.OPERATION, ago_ns: int = LONG_AGO_NS
) -> int:
    """Enter an operation some time ago."""
    return tape.begin(time.monotonic_ns() - ago_ns, 0, 1, 0, 0, 0, 0, 0, -1, 0, thread, kind, flags)


def test_thread_that_has_gone_on(memory: Path) -> None:
    """A synchronous collective ends for readers when its thread has entered another one; the later one does not."""
    tape = new_writer(memory, 64)
    reader = TapeReader.of_writer(tape)
    left, next_one = begin(tape), begin(tape, ago_ns=2 * GRACE_NS)
    batch = reader.poll()
    [ended] = batch.ended
    assert (ended.number, ended.how) == (left, How.ABANDONED)
    assert ended.completed_ns == batch.entered[1].entered_ns
    assert [operation.number for operation in reader.open_operations()] == [next_one]
    assert reader.poll().ended == []
    assert batch.lost == reader.lost == 0
    tape.close()


@pytest.mark.parametrize("flag", [Flag.ASYNC, Flag.POINT_TO_POINT, Flag.COALESCED, Flag.ON_DEVICE])
def test_what_does_not_keep_its_thread(memory: Path, flag: Flag) -> None:
    """Operations that run on their own may be open while their thread goes on: asynchronous, coalesced, on a device."""
    tape = new_writer(memory, 64)
    reader = TapeReader.of_writer(tape)
    begin(tape, flags=flag)
    begin(tape)
    assert reader.poll().ended == []
    tape.close()


def test_other_threads_and_creations(memory: Path) -> None:
    """Another thread's operations prove nothing, nor do those inside the creation of a group."""
    tape = new_writer(memory, 64)
    reader = TapeReader.of_writer(tape)
    begin(tape, thread=7)
    begin(tape, thread=8, kind=RecordKind.RENDEZVOUS)
    begin(tape, thread=8)
    assert reader.poll().ended == []
    tape.close()


def test_operations_inside_a_call(memory: Path) -> None:
    """A backend in Python may issue operations of its own: for a moment the outer call may still end by itself."""
    tape = new_writer(memory, 64)
    reader = TapeReader.of_writer(tape)
    outer, inner = begin(tape), begin(tape, ago_ns=0)
    assert reader.poll().ended == []
    now = time.monotonic_ns()
    for number in (inner, outer):
        tape.complete(number, now - LONG_AGO_NS, now, How.WAIT)
    assert {operation.how for operation in reader.poll().ended} == {How.WAIT}
    tape.close()


def test_busy_thread(memory: Path) -> None:
    """A thread that enters one operation after another does not keep the first one open."""
    tape = new_writer(memory, 4096)
    reader = TapeReader.of_writer(tape)
    left = begin(tape, ago_ns=0)
    deadline = time.monotonic() + 20
    found: list[int] = []
    while not found and time.monotonic() < deadline:
        now = time.monotonic_ns()
        tape.complete(begin(tape, ago_ns=0), now, now + 1, How.CALL)
        found = [operation.number for operation in reader.poll().ended if operation.how is How.ABANDONED]
        time.sleep(0.05)
    assert found == [left]
    tape.close()


def test_wait_that_begins_again(memory: Path) -> None:
    """A wait that gave up does not block; while the next one lasts, it counts as a wait since the first one began."""
    tape = new_writer(memory, 64)
    reader = TapeReader.of_writer(tape)
    number = begin(tape, flags=Flag.ASYNC)
    for which, elapsed in ((Word.RETURNED, 10), (Word.WAIT_ENTERED, 20), (Word.WAIT_RETURNED, 30)):
        tape.mark(number, which, elapsed, How.CALL)
    reader.poll()
    [gave_up] = reader.open_operations()
    assert not gave_up.is_blocking
    tape.clear(number, Word.WAIT_RETURNED)
    reader.poll()
    [waits] = reader.open_operations()
    assert waits.is_blocking
    assert waits.wait_entered_ns == gave_up.wait_entered_ns
    tape.close()


@pytest.mark.parametrize("later", [0, 64])
def test_wait_that_begins_as_another_thread_sees_the_end(memory: Path, later: int) -> None:
    """The end may be older than the wait: a reader takes the wait as begun at the end, also if it is recorded late."""
    tape = new_writer(memory, 64)
    reader = TapeReader.of_writer(tape)
    number = begin(tape, flags=Flag.ASYNC)
    tape.mark(number, Word.RETURNED, 10, How.CALL)
    tape.mark(number, Word.WAIT_ENTERED, 30, How.CALL)
    reader.poll()
    [waits] = reader.open_operations()
    for _ in range(later):
        begin(tape, flags=Flag.ASYNC)
    tape.complete(number, waits.entered_ns, waits.entered_ns + 20, How.POLL)
    [ended] = reader.poll().ended
    assert ended.returned_ns == ended.entered_ns + 10
    assert ended.wait_entered_ns == ended.completed_ns == ended.entered_ns + 20
    tape.close()
