"""A segment as bytes: a head with a checksum of its own, and a compressed body.

    head   magic, checksum of the rest of the head; size, uncompressed size and checksum of the body; what the segment
           is of, so that those of one rank are found without reading the others; numbers of rows
    body   compressed with zlib: a JSON document (see `_Described`), lines of names as in a tape's dictionary, and for
           ended operations, open ones, steps, activities, splits and more of activities their columns, see `columns`

Columns come in the order of `OPERATION_COLUMNS` and so on. What operations from one call site have in common is a row
of the table `plans`. A time after the entry is stored as the nanoseconds since then plus 1, or as 0 if it is not known.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Annotated, Any, Final

from msgspec import Meta

from otel_torchdist.archive.activities import Facts, names_of, pack_facts, with_calls, with_facts
from otel_torchdist.archive.columns import DamagedSegmentError, pack, unpack
from otel_torchdist.archive.heads import HEAD_SIZE, MAX_ROWS, decode_head, encode_head
from otel_torchdist.archive.model import Moment, Segment, SegmentOrigin
from otel_torchdist.archive.splits import MAX_PARTS, pack_splits, splits_of, unpack_splits
from otel_torchdist.model.activities import Activity
from otel_torchdist.model.kinds import ActivityKind, Blame, Flag, How, Phase
from otel_torchdist.model.names import MAX_TEXT, Name, unpack_label
from otel_torchdist.model.operations import Operation, Splits, StepMark
from otel_torchdist.naming import readable
from otel_torchdist.tape.layout import MAX_RANKS, MAX_TIME_NS
from otel_torchdist.tape.names.decoding import DecodingError, decode_json
from otel_torchdist.tape.names.lines import decode_line
from otel_torchdist.tape.names.reader import Names
from otel_torchdist.tape.names.writer import encode_line
from otel_torchdist.tape.records.operations import OPERATION_KINDS

_LEVEL: Final = 5
"""Level 6 takes almost twice the time for less than 1 % of the size."""
_PARTS: Final = struct.Struct("<II")

OPERATION_COLUMNS: Final = (
    "number", "plan", "entered_ns", "step", "sequence", "message_bytes", "peer", "tag",
    "returned_ns", "wait_entered_ns", "wait_returned_ns", "started_ns", "completed_ns",
)  # fmt: skip
STEP_COLUMNS: Final = ("number", "ended_ns", "step", "sequence")
ACTIVITY_COLUMNS: Final = (
    "number", "kind", "entered_ns", "step", "detail", "thread", "completed_ns", "how", "failure"
)  # fmt: skip
PLAN: Final = (
    "kind", "flags", "group", "signature", "call_site", "label_word", "thread", "failure", "how", "started_how",
    "phase", "blame", "caller",
)  # fmt: skip
_TABLES: Final = (OPERATION_COLUMNS, OPERATION_COLUMNS, STEP_COLUMNS, ACTIVITY_COLUMNS)
_HALF_WIDE: Final = ("peer", "tag")
_LATER: Final = OPERATION_COLUMNS[8:]
_GROWING: Final = frozenset({"number", "entered_ns", "ended_ns", "step", "sequence"})
_plan_of: Final = attrgetter(*PLAN)
_HOWS: Final = frozenset([None, *map(int, How)])
_PHASES: Final = frozenset(map(int, Phase))
_BLAMES: Final = frozenset(map(int, Blame))

_Hex = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_Count = Annotated[int, Meta(ge=0, le=MAX_TIME_NS)]
_Signed = Annotated[int, Meta(ge=-MAX_TIME_NS, le=MAX_TIME_NS)]
_Small = Annotated[int, Meta(ge=0, lt=1 << 32)]
_Code = Annotated[int, Meta(ge=0, lt=1 << 16)]
_Plan = tuple[
    _Code, _Code, _Small, _Small, _Small, _Small, _Small, _Small, _Code | None, _Code | None, _Code, _Code, _Code
]


@dataclass(frozen=True, slots=True)
class _Described:
    """The document in a body; see `Origin`, `Moment` and `PLAN`."""

    world_size: Annotated[int, Meta(ge=0, le=MAX_RANKS)]
    host: str
    boot_id: _Hex
    taken_ns: _Count
    wall_offset_ns: _Signed
    lost: _Count
    state: _Small
    failure: str
    archived: _Count
    plans: list[_Plan]
    splits: Annotated[int, Meta(ge=0, le=2 * MAX_ROWS)] = 0
    parts: Annotated[int, Meta(ge=0, le=MAX_PARTS)] = 0
    facts: Annotated[int, Meta(ge=0, le=MAX_ROWS)] = 0
    calls: Annotated[int, Meta(ge=0, le=MAX_ROWS)] = 0


def encode(segment: Segment, names: Names, groups: Iterable[int] = ()) -> bytes:
    """Encode a segment of at most `MAX_ROWS` rows in each table.

    Between columns it offers the GIL: a reader in a training process must not make a step wait for a whole segment.

    Args:
        segment: The segment; its own names are not used.
        names: The dictionary of its tape.
        groups: Ids of groups that are written even if no record refers to them.
    """
    plans: dict[tuple[Any, ...], int] = {}
    splits = splits_of(segment)
    tables = [
        *_operation_columns(segment.ended, plans),
        *_operation_columns(segment.open, plans),
        *_packed(segment.steps, STEP_COLUMNS),
        *_activity_columns(segment.activities),
        *pack_splits(splits),
        *pack_facts(segment.activities),
    ]
    referred = {identity for plan in plans for identity in (*plan[2:5], unpack_label(plan[5])[0], plan[7])}
    referred.update(identity for plan in plans for identity in (*names.path_ids(plan[4]), names.caller_id(plan[12])))
    referred.update(identity for activity in segment.activities for identity in names_of(activity))
    sites = {one.call.call_site for one in segment.activities if one.call is not None}
    referred.update(identity for site in sites for identity in names.path_ids(site))
    found = ((identity, names.get(identity)) for identity in sorted(referred.union(groups)))
    lines = b"".join(encode_line(identity, name) for identity, name in found if name is not None)
    document = json.dumps(_described(segment, list(plans), splits), separators=(",", ":")).encode()
    raw = b"".join([_PARTS.pack(len(document), len(lines)), document, lines, *tables])
    body = zlib.compress(raw, _LEVEL)
    rows = len(segment.ended), len(segment.open), len(segment.steps), len(segment.activities)
    return encode_head(segment.origin, segment.moment, rows, body, len(raw)) + body


def _described(segment: Segment, plans: list[tuple[Any, ...]], splits: Sequence[tuple[int, Splits]]) -> dict[str, Any]:
    origin, moment = segment.origin, segment.moment
    described = _Described(
        world_size=origin.world_size,
        host=origin.host,
        boot_id=f"{origin.boot_id:032x}",
        taken_ns=moment.taken_ns,
        wall_offset_ns=moment.wall_offset_ns,
        lost=moment.lost,
        state=moment.state,
        failure=moment.failure,
        archived=segment.archived,
        plans=[],
        splits=len(splits),
        parts=sum(len(one.sent) for _, one in splits),
        facts=len(with_facts(segment.activities)),
        calls=len(with_calls(segment.activities)),
    )
    return {**asdict(described), "plans": plans}


def _operation_columns(operations: Sequence[Operation], plans: dict[tuple[Any, ...], int]) -> Iterable[bytes]:
    """Pack operations; adds their plans to `plans`."""
    yield pack([operation.number for operation in operations], grows=True)
    yield pack([plans.setdefault(plan, len(plans)) for plan in map(_plan_of, operations)])
    entered = [operation.entered_ns for operation in operations]
    yield pack(entered, grows=True)
    for column in OPERATION_COLUMNS[3:8]:
        time.sleep(0)
        yield pack(list(map(attrgetter(column), operations)), grows=column in _GROWING)
    for column in _LATER:
        time.sleep(0)
        yield pack(_after(list(map(attrgetter(column), operations)), entered))


def _after(times: list[int | None], entered: list[int]) -> list[int]:
    """Return times as they are stored, relative to the entries."""
    if times.count(None) == len(times):  # most columns of most jobs
        return [0] * len(times)
    stored = [0 if at is None else at - since + 1 for at, since in zip(times, entered, strict=True)]
    return stored if min(stored) >= 0 else [max(at, 0) for at in stored]


def _activity_columns(activities: Sequence[Activity]) -> Iterable[bytes]:
    yield from _packed(activities, ACTIVITY_COLUMNS[:6])
    yield pack([0 if one.completed_ns is None else one.completed_ns - one.entered_ns + 1 for one in activities])
    yield pack([one.how or 0 for one in activities])
    yield pack([one.failure for one in activities])


def _packed(rows: Sequence[object], columns: Iterable[str]) -> Iterable[bytes]:
    return [pack(list(map(attrgetter(column), rows)), grows=column in _GROWING) for column in columns]


@dataclass(frozen=True, slots=True)
class Columns:
    """A decoded segment whose rows are still columns.

    Attributes:
        origin: As in `Segment`.
        moment: As in `Segment`.
        archived: As in `Segment`.
        names: As in `Segment`.
        plans: What operations have in common, see `PLAN`.
        ended: Columns of ended operations, see `OPERATION_COLUMNS`.
        open: Columns of open operations.
        steps: Columns of ends of steps, see `STEP_COLUMNS`.
        activities: Columns of activities, see `ACTIVITY_COLUMNS`.
        splits: How uneven exchanges are split, by the number of their operation.
        facts: What else is known of activities.
    """

    origin: SegmentOrigin
    moment: Moment
    archived: int
    names: dict[int, Name]
    plans: list[_Plan]
    ended: list[array[int]]
    open: list[array[int]]
    steps: list[array[int]]
    activities: list[array[int]]
    splits: dict[int, Splits]
    facts: Facts

    @property
    def open_numbers(self) -> frozenset[int]:
        """As `Segment.open_numbers`."""
        activities = (number for number, done in zip(self.activities[0], self.activities[6], strict=True) if not done)
        return frozenset([*self.open[0], *activities])

    def segment(self) -> Segment:
        """Return it with its rows.

        Raises:
            DamagedSegmentError: A row is not one that a tape has.
        """
        try:
            return Segment(
                origin=self.origin,
                moment=self.moment,
                archived=self.archived,
                ended=_operations(self.ended, self.plans, self.splits),
                open=_operations(self.open, self.plans, self.splits),
                steps=[StepMark(*row) for row in zip(*self.steps, strict=True)],
                activities=[self.facts.added_to(_activity(*row)) for row in zip(*self.activities, strict=True)],
                names=self.names,
            )
        except (ValueError, KeyError, IndexError) as error:
            raise DamagedSegmentError(f"a row is not one of a tape: {readable(str(error), 100)}") from error


def decode(content: bytes) -> Columns:
    """Decode a segment.

    Raises:
        DamagedSegmentError: It is cut off, or its checksum or its content is wrong.
    """
    head = decode_head(content)
    if head is None:
        raise DamagedSegmentError("it does not begin with a segment's head")
    body = content[HEAD_SIZE : HEAD_SIZE + head.size]
    if len(body) < head.size:
        raise DamagedSegmentError("it is cut off")
    if zlib.crc32(body) != head.checksum:
        raise DamagedSegmentError("its checksum is wrong")
    raw = _inflated(body, head.raw_size)
    described, names, offset = _described_in(raw)
    view = memoryview(raw)
    tables: list[list[array[int]]] = []
    for count, columns in zip(head.rows, _TABLES, strict=True):
        table: list[array[int]] = []
        for name in columns:
            column, offset = unpack(view, offset, count)
            if name.endswith("_ns") and column and not 0 <= min(column) <= max(column) <= MAX_TIME_NS:
                raise DamagedSegmentError(f"a time in {name} is out of range")
            if name in _HALF_WIDE and column and not -(1 << 31) <= min(column) <= max(column) < 1 << 31:
                raise DamagedSegmentError(f"a number in {name} is out of range")
            table.append(column)
        if columns is OPERATION_COLUMNS and count and not 0 <= min(table[1]) <= max(table[1]) < len(described.plans):
            raise DamagedSegmentError("an operation refers to no plan")
        tables.append(table)
    origin = SegmentOrigin(
        nonce=head.nonce,
        run_id=head.run_id,
        rank=head.rank,
        world_size=described.world_size,
        host=readable(described.host, MAX_TEXT),
        boot_id=int(described.boot_id, 16),
        begun_ns=head.begun_ns,
    )
    moment = Moment(
        taken_ns=described.taken_ns,
        wall_offset_ns=described.wall_offset_ns,
        through=head.through,
        lost=described.lost,
        state=described.state,
        failure=readable(described.failure, MAX_TEXT),
    )
    splits, offset = unpack_splits(view, offset, described.splits, described.parts)
    facts = Facts.unpacked(view, offset, described.facts, described.calls)
    return Columns(origin, moment, described.archived, names, described.plans, *tables, splits=splits, facts=facts)


def _inflated(body: bytes, size: int) -> bytes:
    inflating = zlib.decompressobj()
    try:
        raw = inflating.decompress(body, size + 1)
    except zlib.error as error:
        raise DamagedSegmentError("it cannot be decompressed") from error
    if len(raw) != size or len(raw) < _PARTS.size:
        raise DamagedSegmentError("it has another size than its head says")
    return raw


def _described_in(raw: bytes) -> tuple[_Described, dict[int, Name], int]:
    document, lines = _PARTS.unpack_from(raw)
    begin, end = _PARTS.size, _PARTS.size + document
    if end + lines > len(raw):
        raise DamagedSegmentError("its description is cut off")
    try:
        described = decode_json(raw[begin:end], _Described)
    except DecodingError as error:
        raise DamagedSegmentError(f"its description: {readable(str(error), 200)}") from error
    if not all(
        kind in OPERATION_KINDS and how in _HOWS and started in _HOWS and phase in _PHASES and blame in _BLAMES
        for kind, *_, how, started, phase, blame, _caller in described.plans
    ):
        raise DamagedSegmentError("its description: a plan is not one of a tape")
    found = map(decode_line, raw[end : end + lines].split(b"\n"))
    return described, dict(filter(None, found)), end + lines


def _operations(columns: Sequence[array[int]], plans: Sequence[_Plan], splits: Mapping[int, Splits]) -> list[Operation]:
    make = [_maker(plan, splits) for plan in plans]
    return [make[row[1]](row) for row in zip(*columns, strict=True)]


def _maker(plan: _Plan, splits: Mapping[int, Splits]) -> Callable[[tuple[int, ...]], Operation]:
    """Return what makes operations of a plan from their rows."""
    kind, flags, group, signature, call_site, label_word, thread, failure, how, started_how, phase, fault, caller = plan
    label, piece = unpack_label(label_word)
    kind, flag, when, blame = OPERATION_KINDS[kind], Flag(flags), Phase(phase), Blame(fault)
    ended, started = (None if code is None else How(code) for code in (how, started_how))

    def operation(row: tuple[int, ...]) -> Operation:
        number, _, entered, step, sequence, size, peer, tag, *later = row
        returned, wait_entered, wait_returned, began, completed = (
            entered + at - 1 if at > 0 else None for at in later
        )  # fmt: skip
        return Operation(
            number, kind, entered, step, sequence, size, group, signature, call_site, label, peer, tag, thread, flag,
            returned, wait_entered, wait_returned, began, completed, ended, failure, started, when, splits.get(number),
            None, piece, blame, caller,
        )  # fmt: skip

    return operation


def _activity(
    number: int, kind: int, entered: int, step: int, detail: int, thread: int, took: int, how: int, failure: int
) -> Activity:
    completed = entered + took - 1 if took > 0 else None
    return Activity(
        number, ActivityKind(kind), entered, step, detail, thread, completed, How(how) if how else None, failure
    )
