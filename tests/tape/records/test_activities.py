"""Activities on a tape: recorded, followed and damaged like operations, and never taken for one."""

from __future__ import annotations

import time

import pytest

from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import ActivityKind, How, RecordKind
from otel_torchdist.node.job.runs.lives import waits
from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import prepare_activity
from otel_torchdist.tape.reading.open_intervals import GRACE_NS
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records.operations import operation_of
from otel_torchdist.tape.writer import TapeWriter
from tests.support.tapes.tapes import begin


def enter(writer: TapeWriter, entered_ns: int = 1_000, detail: int = 0, thread: int = 7) -> int:
    """Begin an activity."""
    return writer.begin_prepared(entered_ns, 3, 0, prepare_activity(ActivityKind.OPTIMIZER_STEP, detail, thread))


def test_from_begin_to_end(writer: TapeWriter, reader: TapeReader) -> None:
    """An activity is read as it was written: first open, then ended, with its failure, and among nothing else."""
    adam, error = writer.names.intern("Adam"), writer.names.intern("ValueError")
    number = enter(writer, detail=adam)
    entered = Activity(number, ActivityKind.OPTIMIZER_STEP, 1_000, 3, adam, 7)

    batch = reader.poll()
    assert (batch.activities_entered, batch.activities_ended) == ([entered], [])
    assert entered.is_open
    assert reader.open_activities() == [entered]
    assert (batch.entered, batch.steps, reader.open_operations()) == ([], [], [])
    assert batch.numbers == [number]
    assert not batch.is_empty
    assert not waits(reader)

    writer.complete(number, 1_000, 3_500, How.FAILED, error)
    batch = reader.poll()
    [ended] = batch.activities_ended
    assert (ended.completed_ns, ended.how, ended.failure) == (3_500, How.FAILED, error)
    assert (batch.ended, reader.open_activities(), reader.lost) == ([], [], 0)
    assert reader.poll().is_empty


def test_no_record_is_both() -> None:
    """The payload of an activity, a step or a late end is refused as an operation's."""
    for kind in RecordKind:
        fields = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, kind, 0, 0, 0)
        if kind in (RecordKind.OPERATION, RecordKind.RENDEZVOUS):
            assert operation_of(1, fields).kind is kind
        else:
            with pytest.raises(ValueError, match="not an operation"):
                operation_of(1, fields)


def test_unknown_kind_is_a_lost_record(writer: TapeWriter, reader: TapeReader) -> None:
    """An activity of a later version costs a count, and nothing beside it."""
    tail = layout.PAYLOAD_TAIL.pack(0, 0, 99, 0, 0, -1, 0, 7, RecordKind.ACTIVITY, 0, 0, 0)
    writer.begin_prepared(1_000, 0, 0, tail)
    known = enter(writer)
    batch = reader.poll()
    assert ([one.number for one in batch.activities_entered], batch.lost) == ([known], 1)


def test_open_one_survives_the_ring(small_writer: TapeWriter) -> None:
    """Lapped, an open activity stays visible to old and new readers, and its end comes as a record of its own."""
    writer = small_writer
    follows = TapeReader.of_writer(writer)
    number = enter(writer)
    follows.poll()
    for sequence in range(1, 21):
        writer.complete(begin(writer, sequence=sequence), 1_000, 1_100, How.CALL)
    late = TapeReader.of_writer(writer)
    for reader in (follows, late):
        reader.poll()
        assert [one.number for one in reader.open_activities()] == [number]
        assert reader.open_operations() == []
    writer.complete(number, 1_000, 9_000, How.ABANDONED)
    for reader in (follows, late):
        [ended] = reader.poll().activities_ended
        assert (ended.number, ended.completed_ns, ended.how) == (number, 9_000, How.ABANDONED)


def test_damaged_end(writer: TapeWriter, reader: TapeReader) -> None:
    """An end whose checksum is wrong is lost and counted; no other end is made of it."""
    number = enter(writer)
    writer.complete(number, 1_000, 2_000, How.CALL)
    offset = layout.RING_OFFSET + number * layout.RECORD_SIZE + layout.WORDS_OFFSET + 8 * layout.Word.COMPLETED
    writer.view()[offset] ^= 1
    batch = reader.poll()
    assert (len(batch.activities_entered), batch.activities_ended, batch.lost) == (1, [], 1)
    assert reader.open_activities() == []


def test_another_reader_continues(writer: TapeWriter) -> None:
    """From a cursor a reader goes on with the open activities, and can read again what had ended before."""
    first = TapeReader.of_writer(writer)
    over, still_open = enter(writer), enter(writer)
    writer.complete(over, 1_000, 1_500, How.CALL)
    first.poll()
    cursor = first.cursor
    assert [one.number for one in cursor.open_activities] == [still_open]

    writer.complete(still_open, 1_000, 2_000, How.CALL)
    past = TapeReader.of_writer(writer).read_before(cursor)
    assert [one.number for one in past.activities_entered] == [over, still_open]
    assert [one.number for one in past.activities_ended] == [over]
    second = TapeReader.of_writer(writer)
    second.resume(cursor)
    batch = second.poll()
    assert (batch.activities_entered, [one.number for one in batch.activities_ended]) == ([], [still_open])


def test_does_not_end_the_call_of_its_thread(writer: TapeWriter, reader: TapeReader) -> None:
    """An activity within a synchronous collective does not show that the collective is over, as an operation does."""
    long_ago_ns = time.monotonic_ns() - 3 * GRACE_NS
    call = writer.begin(long_ago_ns, 0, 1, 0, 0, 0, 0, 0, -1, 0, 7, RecordKind.OPERATION, 0)
    enter(writer, long_ago_ns + 1, thread=7)
    assert reader.poll().ended == []
    assert [operation.number for operation in reader.open_operations()] == [call]
