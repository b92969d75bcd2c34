"""Numbers that no rank writes, in undamaged records: left out or clipped, so that every output can hold the rest."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from otel_torchdist.model.kinds import ActivityKind, Flag, How, RecordKind
from otel_torchdist.model.numerics import NumericsFlag
from otel_torchdist.model.remote_calls import RemoteCall
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.figures import FigureWord, read_figures
from otel_torchdist.tape.layout import MAX_NUMBER, LiveWord, prepare_call
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records.numerics import pack_numerics
from otel_torchdist.tape.writer import TapeWriter
from tests.support.tapes.tapes import begin

HUGE = 2**64 - 1
INT64 = 2**63 - 1


def numbers_of(value: Any) -> Iterator[int]:
    """All integers in what was read, at any depth; nonces are 64 bits wide by design, and in no attribute."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from numbers_of(one)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from numbers_of(getattr(value, field.name))
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            if name != "caller_nonce":
                yield from numbers_of(getattr(value, name))


def read(writer: TapeWriter) -> Batch:
    """Return all that a reader reads of the tape."""
    reader = TapeReader.of_writer(writer)
    batch = reader.poll()
    assert all(-INT64 <= number <= INT64 for number in numbers_of(batch)), batch
    assert all(-INT64 <= number <= INT64 for number in numbers_of(reader.cursor))
    return batch


def write(writer: TapeWriter, fields: tuple[int, ...]) -> int:
    """Write a payload of any fields under a right checksum; returns the record's number."""
    writer.write_splits([layout.PAYLOAD.pack(*fields)])
    return writer.next_number() - 1


def operation(
    time_ns: int = 1_000,
    step: int = 0,
    sequence: int = 1,
    size: int = 0,
    kind: RecordKind = RecordKind.OPERATION,
    signature: int = 0,
    flags: int = 0,
) -> tuple[int, ...]:
    """The fields of an operation's payload, or of a record of another kind, in which some mean other things."""
    return (time_ns, step, sequence, size, 0, signature, 0, 0, -1, 0, 7, kind, flags, 0, 0)


KINDS: dict[str, dict[str, Any]] = {
    "operation": {},
    "rendezvous": {"kind": RecordKind.RENDEZVOUS},
    "step": {"kind": RecordKind.STEP},
    "optimizer step": {"kind": RecordKind.ACTIVITY, "signature": ActivityKind.OPTIMIZER_STEP},
    "remote call": {"kind": RecordKind.ACTIVITY, "signature": ActivityKind.RPC_SERVER},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "impossible",
    [
        {"time_ns": HUGE},
        {"time_ns": MAX_NUMBER + 1},
        {"step": -1},
        {"step": -(2**63)},
        {"step": INT64},
        {"sequence": HUGE},
        {"sequence": MAX_NUMBER + 1},
    ],
    ids=str,
)
def test_an_impossible_time_or_position_is_no_record(writer: TapeWriter, kind: str, impossible: dict[str, Any]) -> None:
    """Such a record is counted as refused, and the one behind it is read."""
    write(writer, operation(**KINDS[kind], **impossible))
    last = begin(writer, sequence=5)
    batch = read(writer)
    assert (batch.lost, batch.refused) == (1, 1)
    assert [one.number for one in batch.entered] == [last]
    assert not batch.steps and not batch.activities_entered


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_numbers_are_read(writer: TapeWriter, kind: str) -> None:
    """A record with the largest possible numbers is read, and fits 63 bits, its end included."""
    fields = operation(MAX_NUMBER, MAX_NUMBER, MAX_NUMBER, MAX_NUMBER, **KINDS[kind])
    writer.mark(write(writer, fields), layout.Word.COMPLETED, layout.MAX_DURATION_NS, How.CALL)
    batch = read(writer)
    assert (batch.lost, len([*batch.ended, *batch.activities_ended, *batch.steps])) == (0, 1)


def test_a_huge_size_is_clipped(writer: TapeWriter) -> None:
    """An operation on a tensor that claims 2^64 bytes is read all the same, since it may be the one that hangs."""
    write(writer, operation(size=HUGE))
    write(writer, operation(size=HUGE, flags=Flag.UNEVEN))  # which takes another way through the reader
    write(writer, operation(size=HUGE, **KINDS["optimizer step"]))
    batch = read(writer)
    assert batch.lost == 0
    assert [one.message_bytes for one in (*batch.entered, *batch.activities_entered)] == [MAX_NUMBER] * 3


def test_impossible_values_do_not_take_their_operation_along(writer: TapeWriter) -> None:
    """Statistics at an impossible position are left out without their operation; a count of elements is clipped."""
    writer.write_numerics(pack_numerics(1, 0, HUGE, 0, -1, 0, 7, 4, 0), {})
    other = write(writer, operation(sequence=2))
    writer.write_numerics(pack_numerics(1, 0, 3, 0, -1, 0, 7, HUGE, NumericsFlag.SAMPLED), {})
    number = write(writer, operation(sequence=3))
    batch = read(writer)
    assert batch.refused == 1
    assert [one.number for one in batch.entered] == [other, number]
    assert [one.elements for one in batch.numerics] == [MAX_NUMBER]


@pytest.mark.parametrize("field", ["entered", "original", "elapsed"])
def test_a_late_end_at_an_impossible_time(writer: TapeWriter, reader: TapeReader, field: str) -> None:
    """The operation stays open."""
    number = begin(writer)
    said = {"entered": 1_000, "original": number, "elapsed": 5} | {field: HUGE}
    fields = (said["entered"], 0, said["original"], said["elapsed"], 0, 0, 0, 0, How.CALL, 0, 0)
    write(writer, (*fields, RecordKind.LATE_COMPLETION, 0, 0, 0))
    batch = reader.poll()
    assert (batch.refused, batch.ended) == (1, [])
    assert [one.number for one in reader.open_operations()] == [number]


def test_parts_are_bounded(writer: TapeWriter) -> None:
    """Parts of an `all_to_all` beyond the bound are left out, and the operation is read without them."""
    listed = (HUGE).to_bytes(8, "little") * 2
    packed = layout.SPLITS.pack(0, 1_000, 1, 7, 2, 0, listed, RecordKind.SPLITS, 8, 0)
    writer.write_splits([packed])
    write(writer, operation(flags=Flag.UNEVEN))
    batch = read(writer)
    assert (batch.refused, [one.splits for one in batch.entered]) == (1, [None])


def test_a_nonce_may_have_all_bits(writer: TapeWriter) -> None:
    """The caller of a remote call is named by 64 random bits, which are not clipped."""
    call = RemoteCall(caller_nonce=HUGE, caller_number=5)
    writer.begin_prepared(1_000, 0, 5, prepare_call(ActivityKind.RPC_SERVER, 0, 7, call))
    [activity] = read(writer).activities_entered
    assert activity.call is not None and (activity.call.caller_nonce, activity.call.caller_number) == (HUGE, 5)


def test_a_record_with_an_impossible_number(writer: TapeWriter) -> None:
    """A record numbered near 2^64 is none, so the count of lost ones stays possible too."""
    first = begin(writer)
    number = HUGE - HUGE % writer.identity.capacity - 44
    payload = layout.PAYLOAD.pack(*operation())
    offset = layout.RING_OFFSET + number % writer.identity.capacity * layout.RECORD_SIZE
    head = number.to_bytes(8, "little") + seals.payload_checksum(number, payload).to_bytes(8, "little")
    writer.view()[offset : offset + layout.RECORD_SIZE] = head + payload + layout.EMPTY_WORDS
    writer.view().cast("Q")[LiveWord.NEXT_NUMBER] = HUGE
    batch = read(writer)
    assert (batch.lost, [one.number for one in batch.entered]) == (0, [first])


def test_counters_are_clipped(writer: TapeWriter, memory: Path) -> None:
    """The counters in a tape's header, which have no checksums, are clipped."""
    words = writer.view().cast("Q")
    counters = (LiveWord.RECORDS_DROPPED, LiveWord.NAMES_DROPPED, LiveWord.OVERHEAD_NS, LiveWord.OVERHEAD_CALLS)
    for word in (*counters, *(word for word in FigureWord if word is not FigureWord.FLOPS)):
        words[word] = HUGE
    shutil.copyfile(writer.path, memory / "copy.tape")
    reader = TapeReader(memory / "copy.tape")
    status = reader.status()
    assert {status.records_dropped, status.names_dropped, status.overhead_ns, status.overhead_calls} == {MAX_NUMBER}
    assert max(numbers_of(read_figures(reader.words))) == MAX_NUMBER
    reader.close()
