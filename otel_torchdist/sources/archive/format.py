"""A segment as bytes: a head with a checksum of its own, and a compressed body.

    head   magic, checksum of the rest of the head; size, uncompressed size and checksum of the body; what the segment
           is of, so that those of one rank are found without reading the others; numbers of rows
    body   compressed with zlib: a JSON document (`SegmentDocument`), lines of names as in a tape's dictionary, and for
           ended operations, open ones, steps, activities, splits and more of activities their columns, see `columns`

Columns come in the order of `OPERATION_COLUMNS` and so on. What operations from one call site have in common is a row
of the table `plans`. A time after the entry is stored as the nanoseconds since then plus 1, or as 0 if it is not known.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from otel_torchdist.sources.archive.segment import Moment, SegmentOrigin
from otel_torchdist.sources.archive.tables import (
    MAX_PARTS,
)
from otel_torchdist.tape.layout import MAX_RANKS, MAX_TIME_NS

MAGIC: Final = b"OTDARCH\x01"
MAX_ROWS: Final = 131_072
MAX_BODY: Final = 32 << 20
"""Bytes of a body, compressed or not: names are at most 4 MiB, and rows of 13 columns at most 14 MiB."""
_BEGIN: Final = struct.Struct("<8sI")
_REST: Final = struct.Struct("<IIIQ16sIIIIIQQ")
"""Sizes and checksum of the body; nonce, run, rank; rows of the four tables; through and begun_ns."""
HEAD_SIZE: Final = _BEGIN.size + _REST.size


PARTS: Final = struct.Struct("<II")

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
TABLES: Final = (OPERATION_COLUMNS, OPERATION_COLUMNS, STEP_COLUMNS, ACTIVITY_COLUMNS)

_Hex = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_Count = Annotated[int, Meta(ge=0, le=MAX_TIME_NS)]
_Signed = Annotated[int, Meta(ge=-MAX_TIME_NS, le=MAX_TIME_NS)]
_Small = Annotated[int, Meta(ge=0, lt=1 << 32)]
_Code = Annotated[int, Meta(ge=0, lt=1 << 16)]
Plan = tuple[
    _Code, _Code, _Small, _Small, _Small, _Small, _Small, _Small, _Code | None, _Code | None, _Code, _Code, _Code
]


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a segment.

    Attributes:
        size: Bytes of the body behind it.
        raw_size: Bytes of the body once it is decompressed.
        checksum: Of the body.
        nonce: As in `Origin`.
        run_id: As in `Origin`.
        rank: As in `Origin`.
        rows: How many ended operations, open ones, steps and activities it has.
        through: As in `Moment`.
        begun_ns: As in `Origin`.
    """

    size: int
    raw_size: int
    checksum: int
    nonce: int
    run_id: int
    rank: int
    rows: tuple[int, ...]
    through: int
    begun_ns: int


def encode_head(origin: SegmentOrigin, moment: Moment, rows: tuple[int, ...], body: bytes, raw_size: int) -> bytes:
    """Encode the head of a segment with this body, which had `raw_size` bytes before it was compressed."""
    rest = _REST.pack(
        len(body), raw_size, zlib.crc32(body), origin.nonce, origin.run_id.to_bytes(16, "little"), origin.rank,
        *rows, moment.through, origin.begun_ns,
    )  # fmt: skip
    return _BEGIN.pack(MAGIC, zlib.crc32(rest)) + rest


def decode_head(content: bytes) -> Head | None:
    """Return what a head says; None if these are not the bytes of one."""
    if len(content) < HEAD_SIZE:
        return None
    magic, checksum = _BEGIN.unpack_from(content)
    rest = content[_BEGIN.size : HEAD_SIZE]
    if magic != MAGIC or checksum != zlib.crc32(rest):
        return None
    size, raw_size, of_body, nonce, run_id, rank, *rows, through, begun_ns = _REST.unpack(rest)
    if max(size, raw_size) > MAX_BODY or max(rows) > MAX_ROWS or rank >= MAX_RANKS or begun_ns >> 63:
        return None
    return Head(size, raw_size, of_body, nonce, int.from_bytes(run_id, "little"), rank, tuple(rows), through, begun_ns)


@dataclass(frozen=True, slots=True)
class SegmentDocument:
    """The document in the body of a segment; see `SegmentOrigin`, `Moment` and `PLAN`."""

    world_size: Annotated[int, Meta(ge=0, le=MAX_RANKS)]
    host: str
    boot_id: _Hex
    taken_ns: _Count
    wall_offset_ns: _Signed
    lost: _Count
    state: _Small
    failure: str
    archived: _Count
    plans: list[Plan]
    splits: Annotated[int, Meta(ge=0, le=2 * MAX_ROWS)] = 0
    parts: Annotated[int, Meta(ge=0, le=MAX_PARTS)] = 0
    facts: Annotated[int, Meta(ge=0, le=MAX_ROWS)] = 0
    calls: Annotated[int, Meta(ge=0, le=MAX_ROWS)] = 0
