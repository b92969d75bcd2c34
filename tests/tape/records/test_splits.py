"""How uneven exchanges are split: read as it was written or not at all, and never taken for an operation."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from otel_torchdist.model.kinds import Flag, How, Phase, RecordKind
from otel_torchdist.model.operations import Splits
from otel_torchdist.node.job.runs.lives import waits
from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import MAX_NUMBER
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records.splits import MAX_LISTED, PendingSplits, pack_splits
from otel_torchdist.tape.writer import TapeWriter
from tests.support.tapes.tapes import WriterProcess, begin, new_writer

PARTS = st.one_of(
    *(st.lists(st.integers(0, largest), min_size=1, max_size=2 * MAX_LISTED) for largest in (9, 1 << 16, 1 << 32))
)


def exchange(
    writer: TapeWriter, parts: Sequence[int], at: int = 1_000, unit: int = 4, received: int = 0, thread: int = 7
) -> int:
    """Enter an uneven exchange."""
    writer.write_splits(pack_splits(at, thread, parts, unit, received))
    return writer.begin(at, 3, 1, sum(parts) * unit, 0, 0, 0, 0, -1, 0, thread, RecordKind.OPERATION, Flag.UNEVEN)


def expected(parts: Sequence[int], unit: int, received: int) -> Splits:
    """What a reader makes of it."""
    sizes = tuple(part * unit for part in parts)
    return Splits(sizes if len(sizes) <= MAX_LISTED else (), max(sizes), received, unit=unit if unit < 1 << 32 else 1)


@given(PARTS, st.integers(1, 1 << 33), st.integers(0, MAX_NUMBER))
def test_any_sizes(parts: list[int], unit: int, received: int) -> None:
    """Any sizes in any unit are read as they were written: all of them, or the largest in a group of many."""
    assume(max(parts) * unit <= MAX_NUMBER)
    pending = PendingSplits()
    for payload in pack_splits(1_000, 7, parts, unit, received):
        pending.add(payload)
    assert pending.take(7, 1_000) == expected(parts, unit, received)
    assert pending.take(7, 1_000) is None, "it belongs to one operation"


def test_parts_that_no_record_can_hold() -> None:
    """Parts of more than 64 bits are refused before anything is written."""
    with pytest.raises(struct.error):
        pack_splits(1_000, 7, [1 << 32], 1 << 32, 0)


@pytest.mark.parametrize(("members", "part", "records"), [(2, 9, 1), (16, 65_535, 1), (16, 65_536, 2), (64, 9, 4)])
def test_records_that_it_takes(members: int, part: int, records: int) -> None:
    """One record for up to sixteen members; never more than four, if parts have less than 65,536 rows."""
    assert len(pack_splits(1_000, 7, [part] * members, 4, 0)) == records
    assert len(pack_splits(1_000, 7, [part] * (MAX_LISTED + 1), 4, 0)) == 1


def test_on_a_tape(writer: TapeWriter, reader: TapeReader) -> None:
    """The operation has its splits in all polls; nothing else shows that they are records of their own."""
    before = begin(writer)
    number = exchange(writer, range(20), received=123)
    batch = reader.poll()
    splits = expected(range(20), 4, 123)
    assert [(one.number, one.splits) for one in batch.entered] == [(before, None), (number, splits)]
    assert (batch.companions, batch.numbers, batch.lost) == ([2, 3], [1, 2, 3, 4], 0)
    assert [one.number for one in reader.open_operations()] == [before, number]

    writer.complete(number, 1_000, 2_000, How.WAIT)
    [ended] = reader.poll().ended
    assert (ended.number, ended.splits, ended.phase) == (number, splits, Phase.UNKNOWN)
    assert reader.poll().is_empty


def test_alone_they_are_not_a_wait(writer: TapeWriter, reader: TapeReader) -> None:
    """Splits whose operation has not come are news of no operation."""
    writer.write_splits(pack_splits(1_000, 7, [1, 2], 4, 0))
    batch = reader.poll()
    assert (batch.entered, batch.ended, batch.steps, batch.is_empty) == ([], [], [], False)
    assert not waits(reader)
    assert reader.open_operations() == []
    writer.begin(1_000, 3, 1, 12, 0, 0, 0, 0, -1, 0, 7, RecordKind.OPERATION, Flag.UNEVEN)
    [operation] = reader.poll().entered
    assert operation.splits == expected([1, 2], 4, 0), "it may come in a later poll"


def test_threads_at_once(writer: TapeWriter, reader: TapeReader) -> None:
    """Each operation gets the splits of its own thread and time, whatever the order of the records is."""
    long, short = list(range(40)), [9, 8]
    first, second, third = pack_splits(1_000, 1, long, 4, 0)
    [other] = pack_splits(1_000, 2, short, 4, 5)
    for payload in (first, other, second, third):
        writer.write_splits([payload])
    for thread, at in ((2, 1_000), (1, 1_000), (1, 2_000)):
        writer.begin(at, 3, 1, 12, 0, 0, 0, 0, -1, 0, thread, RecordKind.OPERATION, Flag.UNEVEN)
    found = [one.splits for one in reader.poll().entered]
    assert found == [expected(short, 4, 5), expected(long, 4, 0), None]


def test_an_even_one_has_none(writer: TapeWriter, reader: TapeReader) -> None:
    """Splits that a signal handler has left without their operation are not given to the next one."""
    writer.write_splits(pack_splits(1_000, 7, [1, 2], 4, 0))
    writer.begin(1_000, 3, 1, 12, 0, 0, 0, 0, -1, 0, 7, RecordKind.OPERATION, 0)
    [operation] = reader.poll().entered
    assert operation.splits is None


def test_lapped(small_writer: TapeWriter) -> None:
    """A reader that follows keeps the splits of an open operation; a later one knows that it is uneven."""
    writer = small_writer
    follows = TapeReader.of_writer(writer)
    number = exchange(writer, [1, 2, 3])
    follows.poll()
    for sequence in range(1, 21):
        writer.complete(begin(writer, sequence=sequence), 1_000, 1_100, How.CALL)
    late = TapeReader.of_writer(writer)
    for reader, splits in ((follows, expected([1, 2, 3], 4, 0)), (late, None)):
        reader.poll()
        assert [(one.number, one.splits) for one in reader.open_operations()] == [(number, splits)]
    writer.complete(number, 1_000, 9_000, How.WAIT)
    for reader, splits in ((follows, expected([1, 2, 3], 4, 0)), (late, None)):
        [ended] = reader.poll().ended
        assert (ended.splits, bool(ended.flags & Flag.UNEVEN), ended.completed_ns) == (splits, True, 9_000)


def test_ring_full_of_exchanges(writer: TapeWriter, reader: TapeReader) -> None:
    """A reader that reads in time loses nothing, however often the ring wraps within the splits of one operation."""
    for nth in range(100):
        parts = [nth * part for part in range(1, 41)]
        number = exchange(writer, parts, at=1_000 + nth, unit=2, received=nth)
        writer.complete(number, 1_000 + nth, 2_000 + nth, How.WAIT)
        [ended] = reader.poll().ended
        assert ended.splits == expected(parts, 2, nth)
    assert reader.lost == 0


def test_every_flipped_bit_is_seen(small_writer: TapeWriter, tmp_path: Path) -> None:
    """With any bit of the splits flipped, the operation has the true ones, or none and a record is lost."""
    number = exchange(small_writer, range(20), received=99)
    small_writer.complete(number, 1_000, 2_000, How.WAIT)
    path, sound = tmp_path / "copy.tape", small_writer.path.read_bytes()
    offset = layout.RING_OFFSET + layout.RECORD_SIZE  # that of record 1
    for bit in range(8 * offset, 8 * (offset + 2 * layout.RECORD_SIZE)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        reader = TapeReader(path)
        batch = reader.poll()
        ended = [(one.number, one.splits) for one in batch.ended]
        reader.close()
        assert (ended, batch.lost) in [
            ([(number, expected(range(20), 4, 99))], 0),  # outside of what is checked: no word belongs to splits
            ([(number, None)], 1),
        ]


@given(st.binary(min_size=layout.PAYLOAD.size, max_size=layout.PAYLOAD.size))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_payload(memory: Path, content: bytes) -> None:
    """Bytes with a sound checksum and the kind of splits are splits of a possible size, or a lost record."""
    payload = bytearray(content)
    payload[60] = RecordKind.SPLITS
    writer = new_writer(memory)
    reader = TapeReader.of_writer(writer)
    writer.write_splits([bytes(payload)])
    received, entered_ns, _, thread, *_ = layout.SPLITS.unpack(payload)
    entered_ns = min(entered_ns, MAX_NUMBER)
    step = writer.begin(entered_ns, 3, 1, 12, 0, 0, 0, 0, -1, 0, thread, RecordKind.OPERATION, Flag.UNEVEN)
    batch = reader.poll()
    assert [one.number for one in batch.entered] == [step]
    splits = batch.entered[0].splits
    if splits is not None:
        assert (batch.lost, splits.received) == (0, received)
        assert 0 <= splits.largest <= MAX_NUMBER and len(splits.sent) <= MAX_LISTED
    writer.close()


def test_unknown_phase_is_a_lost_record(writer: TapeWriter, reader: TapeReader) -> None:
    """A phase of a later version costs a count; each known one is read as it was written."""
    for phase in (*Phase, 99):
        writer.begin(1_000, 3, 1, 12, 0, 0, 0, 0, -1, 0, 7, RecordKind.OPERATION, 0, phase)
    batch = reader.poll()
    assert ([one.phase for one in batch.entered], batch.lost) == (list(Phase), 1)


@pytest.mark.process
def test_killed_in_between(memory: Path) -> None:
    """A process that is killed before it enters the operation leaves no operation; after that, one with its splits."""
    for commands, found in ((["splits"], []), (["splits", "uneven"], [Splits((20, 24, 28), 28, 100, unit=4)])):
        with WriterProcess(memory) as rank:
            for command in commands:
                rank.send(command)
            rank.kill()
            reader = TapeReader(rank.path)
            batch = reader.poll()
            assert ([one.splits for one in batch.entered], batch.lost) == (found, 0)
            assert len(reader.open_operations()) == len(found)
            reader.close()
