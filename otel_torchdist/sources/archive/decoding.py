"""Decodes segments, which may be truncated, damaged or forged."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import ActivityKind, Blame, Flag, How, Phase
from otel_torchdist.model.names import MAX_TEXT, Name, unpack_label
from otel_torchdist.model.operations import Operation, Splits, StepMark
from otel_torchdist.model.text import readable
from otel_torchdist.sources.archive.columns import DamagedSegmentError, unpack
from otel_torchdist.sources.archive.format import (
    HEAD_SIZE,
    OPERATION_COLUMNS,
    SECTION_SIZES,
    TABLES,
    Plan,
    SegmentDocument,
    decode_head,
)
from otel_torchdist.sources.archive.segment import Moment, Segment, SegmentOrigin
from otel_torchdist.sources.archive.tables import SparseFields, unpack_splits
from otel_torchdist.tape.layout import MAX_TIME_NS
from otel_torchdist.tape.names.decoding import DecodingError, decode_json, decode_line
from otel_torchdist.tape.records.operations import OPERATION_KINDS

_INT32_COLUMNS: Final = ("peer", "tag")
_HOWS: Final = frozenset([None, *map(int, How)])
_PHASES: Final = frozenset(map(int, Phase))
_BLAMES: Final = frozenset(map(int, Blame))


@dataclass(frozen=True, slots=True)
class Columns:
    """A decoded segment, still in columns. Fields not listed are as in `Segment`.

    Attributes:
        plans: Fields shared by operations, see `PLAN`.
        ended: Columns of ended operations, see `OPERATION_COLUMNS`.
        open: Columns of operations in flight.
        steps: Columns of ends of steps, see `STEP_COLUMNS`.
        activities: Columns of activities, see `ACTIVITY_COLUMNS`.
        splits: Splits of uneven exchanges, by operation number.
        sparse: Fields that few activities have, and remote calls.
    """

    origin: SegmentOrigin
    moment: Moment
    archived: int
    names: dict[int, Name]
    plans: list[Plan]
    ended: list[array[int]]
    open: list[array[int]]
    steps: list[array[int]]
    activities: list[array[int]]
    splits: dict[int, Splits]
    sparse: SparseFields

    @property
    def open_numbers(self) -> frozenset[int]:
        """Numbers of operations and activities still in flight."""
        activities = (number for number, done in zip(self.activities[0], self.activities[6], strict=True) if not done)
        return frozenset([*self.open[0], *activities])

    def segment(self) -> Segment:
        """Return the segment with objects for rows.

        Raises:
            DamagedSegmentError: No tape can contain one of its rows.
        """
        try:
            return Segment(
                origin=self.origin,
                moment=self.moment,
                archived=self.archived,
                ended=_operations(self.ended, self.plans, self.splits),
                open=_operations(self.open, self.plans, self.splits),
                steps=[StepMark(*row) for row in zip(*self.steps, strict=True)],
                activities=[self.sparse.added_to(_activity(*row)) for row in zip(*self.activities, strict=True)],
                names=self.names,
            )
        except (ValueError, KeyError, IndexError) as error:
            raise DamagedSegmentError(f"a row is invalid: {readable(str(error), 100)}") from error


def decode(content: bytes) -> Columns:
    """Decode a segment.

    Raises:
        DamagedSegmentError: It is truncated, or its checksum or its content is wrong.
    """
    head = decode_head(content)
    if head is None:
        raise DamagedSegmentError("it does not begin with a segment's head")
    body = content[HEAD_SIZE : HEAD_SIZE + head.size]
    if len(body) < head.size:
        raise DamagedSegmentError("it is truncated")
    if zlib.crc32(body) != head.checksum:
        raise DamagedSegmentError("its checksum is wrong")
    raw = _inflated(body, head.raw_size)
    document, names, offset = _document_in(raw)
    view = memoryview(raw)
    tables: list[list[array[int]]] = []
    for count, columns in zip(head.rows, TABLES, strict=True):
        table: list[array[int]] = []
        for name in columns:
            column, offset = unpack(view, offset, count)
            if name.endswith("_ns") and column and not 0 <= min(column) <= max(column) <= MAX_TIME_NS:
                raise DamagedSegmentError(f"a time in {name} is out of range")
            if name in _INT32_COLUMNS and column and not -(1 << 31) <= min(column) <= max(column) < 1 << 31:
                raise DamagedSegmentError(f"a number in {name} is out of range")
            table.append(column)
        if columns is OPERATION_COLUMNS and count and not 0 <= min(table[1]) <= max(table[1]) < len(document.plans):
            raise DamagedSegmentError("an operation refers to no plan")
        tables.append(table)
    origin = SegmentOrigin(
        nonce=head.nonce,
        run_id=head.run_id,
        rank=head.rank,
        world_size=document.world_size,
        host=readable(document.host, MAX_TEXT),
        boot_id=int(document.boot_id, 16),
        begun_ns=head.begun_ns,
    )
    moment = Moment(
        taken_ns=document.taken_ns,
        wall_offset_ns=document.wall_offset_ns,
        first_unread=head.first_unread,
        lost=document.lost,
        state=document.state,
        failure=readable(document.failure, MAX_TEXT),
    )
    splits, offset = unpack_splits(view, offset, document.splits, document.parts)
    sparse = SparseFields.unpacked(view, offset, document.facts, document.calls)
    return Columns(origin, moment, document.archived, names, document.plans, *tables, splits=splits, sparse=sparse)


def _inflated(body: bytes, size: int) -> bytes:
    inflating = zlib.decompressobj()
    try:
        raw = inflating.decompress(body, size + 1)
    except zlib.error as error:
        raise DamagedSegmentError("it cannot be decompressed") from error
    if len(raw) != size or len(raw) < SECTION_SIZES.size:
        raise DamagedSegmentError("its size differs from its head")
    return raw


def _document_in(raw: bytes) -> tuple[SegmentDocument, dict[int, Name], int]:
    """Return a segment's document and names, and the offset of its first column."""
    document_size, names_size = SECTION_SIZES.unpack_from(raw)
    begin, end = SECTION_SIZES.size, SECTION_SIZES.size + document_size
    if end + names_size > len(raw):
        raise DamagedSegmentError("its document is truncated")
    try:
        document = decode_json(raw[begin:end], SegmentDocument)
    except DecodingError as error:
        raise DamagedSegmentError(f"its document is invalid: {readable(str(error), 200)}") from error
    if not all(
        kind in OPERATION_KINDS and how in _HOWS and started in _HOWS and phase in _PHASES and blame in _BLAMES
        for kind, *_, how, started, phase, blame, _caller in document.plans
    ):
        raise DamagedSegmentError("its document is invalid: a plan")
    names = map(decode_line, raw[end : end + names_size].split(b"\n"))
    return document, dict(filter(None, names)), end + names_size


def _operations(columns: Sequence[array[int]], plans: Sequence[Plan], splits: Mapping[int, Splits]) -> list[Operation]:
    make = [_maker(plan, splits) for plan in plans]
    return [make[row[1]](row) for row in zip(*columns, strict=True)]


def _maker(plan: Plan, splits: Mapping[int, Splits]) -> Callable[[tuple[int, ...]], Operation]:
    """Return a function that turns a row of this plan into an operation."""
    kind, flags, group, signature, call_site, label_word, thread, failure, how, started_how, phase, fault, caller = plan
    label, piece = unpack_label(label_word)
    kind, flag, phase, blame = OPERATION_KINDS[kind], Flag(flags), Phase(phase), Blame(fault)
    ended, started = (None if code is None else How(code) for code in (how, started_how))

    def operation(row: tuple[int, ...]) -> Operation:
        number, _, entered, step, sequence, size, peer, tag, *later = row
        returned, wait_entered, wait_returned, began, completed = (
            entered + stored - 1 if stored > 0 else None for stored in later
        )  # fmt: skip
        return Operation(
            number, kind, entered, step, sequence, size, group, signature, call_site, label, peer, tag, thread, flag,
            returned, wait_entered, wait_returned, began, completed, ended, failure, started, phase, splits.get(number),
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
