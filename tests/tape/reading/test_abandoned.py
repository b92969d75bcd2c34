"""Records of calls that are over, though no end was recorded, do not stay open for readers."""

from __future__ import annotations

import time

import pytest

from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.tape.layout import Word
from otel_torchdist.tape.reading.open_intervals import GRACE_NS
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.writer import TapeWriter
from tests.support.waiting import until

LONG_AGO_NS = 3 * GRACE_NS


def begin(
    tape: TapeWriter, *, thread: int = 7, flags: int = 0, kind: int = RecordKind.OPERATION, ago_ns: int = LONG_AGO_NS
) -> int:
    """Enter an operation some time ago."""
    return tape.begin(time.monotonic_ns() - ago_ns, 0, 1, 0, 0, 0, 0, 0, -1, 0, thread, kind, flags)


def test_thread_that_has_gone_on(writer: TapeWriter, reader: TapeReader) -> None:
    """A synchronous collective ends for readers when its thread has entered another one; the later one does not."""
    left, next_one = begin(writer), begin(writer, ago_ns=2 * GRACE_NS)
    batch = reader.poll()
    [ended] = batch.ended
    assert (ended.number, ended.how) == (left, How.ABANDONED)
    assert ended.completed_ns == batch.entered[1].entered_ns
    assert [operation.number for operation in reader.open_operations()] == [next_one]
    assert reader.poll().ended == []
    assert batch.lost == reader.lost == 0


@pytest.mark.parametrize("flag", [Flag.ASYNC, Flag.POINT_TO_POINT, Flag.COALESCED, Flag.ON_DEVICE])
def test_what_does_not_keep_its_thread(writer: TapeWriter, reader: TapeReader, flag: Flag) -> None:
    """Operations that run on their own may be open while their thread goes on: asynchronous, coalesced, on a device."""
    begin(writer, flags=flag)
    begin(writer)
    assert reader.poll().ended == []


def test_other_threads_and_creations(writer: TapeWriter, reader: TapeReader) -> None:
    """Another thread's operations prove nothing, nor do those inside the creation of a group."""
    begin(writer, thread=7)
    begin(writer, thread=8, kind=RecordKind.RENDEZVOUS)
    begin(writer, thread=8)
    assert reader.poll().ended == []


def test_operations_inside_a_call(writer: TapeWriter, reader: TapeReader) -> None:
    """A backend in Python may issue operations of its own: for a moment the outer call may still end by itself."""
    outer, inner = begin(writer), begin(writer, ago_ns=0)
    assert reader.poll().ended == []
    now = time.monotonic_ns()
    for number in (inner, outer):
        writer.complete(number, now - LONG_AGO_NS, now, How.WAIT)
    assert {operation.how for operation in reader.poll().ended} == {How.WAIT}


def test_busy_thread(writer: TapeWriter, reader: TapeReader) -> None:
    """A thread that enters one operation after another does not keep the first one open."""
    left = begin(writer, ago_ns=0)

    def abandoned() -> list[int]:
        now = time.monotonic_ns()
        writer.complete(begin(writer, ago_ns=0), now, now + 1, How.CALL)
        return [operation.number for operation in reader.poll().ended if operation.how is How.ABANDONED]

    assert until(abandoned) == [left]


def test_wait_that_begins_again(writer: TapeWriter, reader: TapeReader) -> None:
    """A wait that gave up does not block; while the next one lasts, it counts as a wait since the first one began."""
    number = begin(writer, flags=Flag.ASYNC)
    for which, elapsed in ((Word.RETURNED, 10), (Word.WAIT_ENTERED, 20), (Word.WAIT_RETURNED, 30)):
        writer.mark(number, which, elapsed, How.CALL)
    reader.poll()
    [gave_up] = reader.open_operations()
    assert not gave_up.is_blocking
    writer.clear(number, Word.WAIT_RETURNED)
    reader.poll()
    [waits] = reader.open_operations()
    assert waits.is_blocking
    assert waits.wait_entered_ns == gave_up.wait_entered_ns


@pytest.mark.parametrize("later", [0, 64])
def test_wait_that_begins_as_another_thread_sees_the_end(writer: TapeWriter, reader: TapeReader, later: int) -> None:
    """The end may be older than the wait: a reader takes the wait as begun at the end, also if it is recorded late."""
    number = begin(writer, flags=Flag.ASYNC)
    writer.mark(number, Word.RETURNED, 10, How.CALL)
    writer.mark(number, Word.WAIT_ENTERED, 30, How.CALL)
    reader.poll()
    [waits] = reader.open_operations()
    for _ in range(later):
        begin(writer, flags=Flag.ASYNC)
    writer.complete(number, waits.entered_ns, waits.entered_ns + 20, How.POLL)
    [ended] = reader.poll().ended
    assert ended.returned_ns == ended.entered_ns + 10
    assert ended.wait_entered_ns == ended.completed_ns == ended.entered_ns + 20
