"""Segments: what is written is read, in few bytes, and damaged ones are refused, whatever they hold."""

from __future__ import annotations

import random
import struct
import time
import zlib
from dataclasses import replace

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otel_torchdist.model.activity_kinds import CALL_SIDES
from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import ActivityKind, CallMode, Flag, How, RecordKind, TapeState
from otel_torchdist.model.names import MAX_PIECE
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.model.remote_calls import RemoteCall
from otel_torchdist.sources.archive.columns import MAX_VALUE, MIN_VALUE, DamagedSegmentError, pack, unpack
from otel_torchdist.sources.archive.decoding import decode
from otel_torchdist.sources.archive.encoding import encode, parts_of
from otel_torchdist.sources.archive.format import HEAD_SIZE, MAX_ROWS, decode_head
from otel_torchdist.sources.archive.reading import fresh_rows
from otel_torchdist.sources.archive.segment import Archived, Moment, Segment
from otel_torchdist.tape.layout import MAX_TIME_NS
from otel_torchdist.tape.names.reader import Names
from tests.sources.archive.made import NAMES, operations, origin, segment

_names = Names(dict(enumerate(NAMES, 1)))
_counts = st.integers(0, 1 << 40)
_times = st.integers(0, MAX_TIME_NS)
_after = st.none() | st.integers(0, 1 << 47)
_ids = st.integers(0, len(NAMES))
_ranks = st.integers(-1, (1 << 31) - 1)


@st.composite
def _operations(draw: st.DrawFn) -> Operation:
    entered = draw(_times)
    returned, wait_entered, wait_returned, started, completed = (
        None if (took := draw(_after)) is None else entered + took for _ in range(5)
    )
    return Operation(
        draw(_counts), draw(st.sampled_from((RecordKind.OPERATION, RecordKind.RENDEZVOUS))), entered, draw(_counts),
        draw(_counts), draw(_counts), draw(_ids), draw(_ids), draw(_ids), draw(_ids), draw(_ranks),
        draw(st.integers(-(1 << 31), (1 << 31) - 1)), draw(st.integers(0, 1 << 31)), Flag(draw(st.integers(0, 127))),
        returned, wait_entered, wait_returned, started, completed, draw(st.none() | st.sampled_from(How)),
        draw(_ids), draw(st.none() | st.sampled_from(How)), piece=draw(st.integers(0, MAX_PIECE)),
    )  # fmt: skip


@st.composite
def _activities(draw: st.DrawFn) -> Activity:
    entered, took = draw(_times), draw(_after)
    how = draw(st.none() | st.sampled_from(How))
    completed = None if took is None else entered + took
    kind = draw(st.sampled_from(ActivityKind))
    facts = [draw(one) for one in (_counts, _counts, _counts, _ids, _ids)] if draw(st.booleans()) else [0] * 5
    call = draw(_calls(entered)) if kind in CALL_SIDES else None
    return Activity(
        draw(_counts), kind, entered, draw(_counts), draw(_ids), draw(_counts), completed, how, draw(_ids),
        *facts, call=call,
    )  # fmt: skip


@st.composite
def _calls(draw: st.DrawFn, entered: int) -> RemoteCall:
    took = draw(_after)
    return RemoteCall(
        draw(_ranks), draw(_ids), draw(_ids), draw(st.sampled_from(CallMode)), draw(st.integers(0, (1 << 64) - 1)),
        draw(_counts), draw(_counts), None if took is None else entered + took, draw(st.booleans()),
    )  # fmt: skip


_steps = st.builds(StepMark, _counts, _times, _counts, _counts)
_segments = st.builds(
    Segment,
    st.just(origin()),
    st.builds(Moment, _times, st.integers(-MAX_TIME_NS, MAX_TIME_NS), _counts, _counts, st.sampled_from(TapeState)),
    _counts,
    st.lists(_operations(), max_size=20),
    st.lists(_operations(), max_size=3),
    st.lists(_steps, max_size=5),
    st.lists(_activities(), max_size=5, unique_by=lambda one: one.number),
)


@example([-1, MAX_VALUE], True)
@example([MAX_VALUE, MIN_VALUE], True)
@given(st.lists(st.integers(MIN_VALUE, MAX_VALUE) | st.integers(-300, 300), max_size=50), st.booleans())
def test_columns(values: list[int], grows: bool) -> None:
    """Any column of 64-bit numbers comes back, and the next one begins where it ends."""
    packed = pack(values, grows)
    found, end = unpack(memoryview(packed + b"next"), 0, len(values))
    assert (list(found), end) == (values, len(packed))


@given(_segments)
def test_round_trip(made: Segment) -> None:
    """Every segment comes back, whatever its activities are, with exactly the names that its records refer to."""
    found = decode(encode(made, _names)).segment()
    referred = {
        identity
        for one in (*made.ended, *made.open)
        for identity in (one.group, one.signature, one.call_site, one.label, one.failure)
    } | {
        identity
        for one in made.activities
        for identity in (one.detail, one.failure, one.storage, one.explanation)
        + ((one.call.worker_name, one.call.call_site) if one.call is not None else ())
    }
    assert found == replace(made, names={one: NAMES[one - 1] for one in referred - {0}})


def test_parts() -> None:
    """A segment with too many rows becomes several with each row once, and only the last one says what is archived."""
    made = operations(1, 60)
    steps = [StepMark(number, number, number, 0) for number in range(70)]
    activities = [
        Activity(number, ActivityKind.OPTIMIZER_STEP, 5, 1, 0, 1, None if number % 9 == 0 else 9, None, 0)
        for number in range(100, 130)
    ]
    whole = replace(segment(made[5:50], 61), open=made[50:], steps=steps, activities=activities)
    before = Archived(11, frozenset([6, 7, 8, 9, 10]), 5)
    found = [decode(encode(part, _names)) for part in parts_of(whole, before, max_rows=20)]
    assert [len(one.ended[0]) for one in found] == [20, 20, 5, 0]
    assert [number for one in found for number in one.steps[0]] == list(range(70))
    assert sorted(number for one in found for number in one.activities[0]) == list(range(100, 130))
    assert [(one.moment.first_unread, one.archived, len(one.open_numbers)) for one in found] == [
        (11, 5, 0), (11, 5, 0), (11, 5, 0), (61, 50, 10 + 3),
    ]  # fmt: skip
    predecessor = decode(encode(replace(segment(made[:5], 11), open=made[5:10]), _names))
    fresh = [number for one, new, _ in fresh_rows([predecessor, *found]) for number in one.ended[0] if all(new)]
    assert fresh == list(range(1, 51))


def test_groups_without_calls() -> None:
    """Groups that are asked for are in it even if no record refers to them."""
    assert decode(encode(segment([], 1), _names, groups=[1])).names == {1: NAMES[0]}


def test_few_bytes() -> None:
    """A full segment takes at most 14 bytes an operation, and at most 20 µs of processor time on a slow machine."""
    made = segment(operations(1, 16_384), 16_385)

    def encoding_s() -> float:
        began = time.process_time()
        encode(made, _names)
        return time.process_time() - began

    assert min(encoding_s() for _ in range(3)) < 16_384 * 20e-6
    assert len(encode(made, _names)) < 14 * 16_384


@given(st.data())
def test_damage(data: st.DataObject) -> None:
    """A segment with a flipped bit, or cut off, is refused with a reason: it is never read as something else."""
    content = bytearray(encode(segment(operations(1, 50), 51), _names))
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    with pytest.raises(DamagedSegmentError):
        decode(bytes(content))


def _resealed(content: bytes, raw: bytes) -> bytes:
    """A segment with another body and sound checksums, as an attacker would make it."""
    body = zlib.compress(raw)
    rest = struct.pack("<III", len(body), len(raw), zlib.crc32(body)) + content[24:HEAD_SIZE]
    return content[:8] + struct.pack("<I", zlib.crc32(rest)) + rest + body


def test_forged() -> None:
    """Thousands of forged bodies with sound checksums are read or refused, and nothing else happens."""
    call = RemoteCall(1, 4, 3, CallMode.SYNC, 5, 6, 7, 90, True)
    activities = [
        Activity(70, ActivityKind.CHECKPOINT_SAVE, 5, 1, 4, 1, 9, How.CALL, 5, 1, 1000, 2, 4, 4),
        Activity(71, ActivityKind.RPC_CLIENT, 5, 1, 4, 1, 9, How.CALL, call=call),
    ]
    content = encode(replace(segment(operations(1, 60), 61), activities=activities), _names)
    raw = zlib.decompress(content[HEAD_SIZE:])
    assert decode(_resealed(content, raw)).segment() == decode(content).segment()
    chance = random.Random(5)
    refused = 0
    for _ in range(600):
        forged = bytearray(raw)
        for _ in range(chance.randrange(1, 4)):
            forged[chance.randrange(len(forged))] = chance.randrange(256)
        try:
            decode(_resealed(content, bytes(forged))).segment()
        except DamagedSegmentError:
            refused += 1
    assert 60 < refused < 600


def test_segments_of_before() -> None:
    """A segment without the tables of what activities have besides, as it was written before them, is read."""
    content = encode(segment(operations(1, 60), 61), _names)
    raw = zlib.decompress(content[HEAD_SIZE:])
    size, names = struct.unpack_from("<II", raw)
    document = raw[8 : 8 + size].replace(b',"facts":0,"calls":0', b"")
    assert len(document) < size
    old = struct.pack("<II", len(document), names) + document + raw[8 + size :]
    assert decode(_resealed(content, old)).segment() == decode(content).segment()


def test_bomb() -> None:
    """A body that claims to be small and is not, or the reverse, costs no memory; nor do rows beyond the limit."""
    content = encode(segment(operations(1, 10), 11), _names)
    bomb = zlib.compress(bytes(64 << 20))
    rest = struct.pack("<III", len(bomb), 1000, zlib.crc32(bomb)) + content[24:HEAD_SIZE]
    with pytest.raises(DamagedSegmentError, match="differs from its head"):
        decode(content[:8] + struct.pack("<I", zlib.crc32(rest)) + rest + bomb)
    rows = content[12:52] + struct.pack("<I", MAX_ROWS + 1) + content[56:HEAD_SIZE]
    assert decode_head(content[:8] + struct.pack("<I", zlib.crc32(rows)) + rows) is None


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [("peer", 1 << 31, "number"), ("tag", 1 << 31, "number"), ("entered_ns", MAX_TIME_NS + 1, "time")],
)
def test_numbers_are_those_of_a_tape(field: str, value: int, what: str) -> None:
    """Another number in a sound segment is forged, and what reads columns could not hold it."""
    forged = msgspec.structs.replace(operations(1, 1)[0], **{field: value})  # pyright: ignore[reportArgumentType]
    with pytest.raises(DamagedSegmentError, match=f"a {what} in {field} is out of range"):
        decode(encode(segment([forged], 2), _names))


def test_impossible_numbers() -> None:
    """Numbers beyond 64 bits, which only a damaged tape has, are cut; the rest of the segment is as it was."""
    made = operations(1, 3)
    content = encode(segment([made[0], msgspec.structs.replace(made[1], message_bytes=1 << 64), made[2]], 4), _names)
    found = decode(content).segment().ended
    assert found == [made[0], msgspec.structs.replace(made[1], message_bytes=MAX_VALUE), made[2]]
