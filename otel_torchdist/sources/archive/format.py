"""The byte format of a segment: a head with its own checksum, and a compressed body.

    head   magic; checksum of the rest of the head; size, uncompressed size and checksum of the body; run and rank, to
           find the segments of a rank without decompressing the others; numbers of rows
    body   compressed with zlib: a JSON document (`SegmentDocument`), lines of names as in a tape's dictionary, and the
           columns (see `columns`) of ended operations, operations in flight, steps, activities, splits, and the sparse
           fields and remote calls of activities

The columns of a table have the order of `OPERATION_COLUMNS`, `STEP_COLUMNS`, …. Fields shared by the operations of a
call site are a row of the table `plans`. A time after the entry is stored as nanoseconds since the entry plus 1, or
as 0 if unknown.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from otel_torchdist.formats import ARCHIVE
from otel_torchdist.sources.archive.segment import Moment, SegmentOrigin
from otel_torchdist.sources.archive.tables import MAX_PARTS
from otel_torchdist.tape.layout import MAX_RANKS, MAX_TIME_NS

MAGIC_START: Final = b"OTDARCH"
"""The same in all formats; the byte behind it is the number of the format."""
MAGIC: Final = MAGIC_START + bytes([ARCHIVE.number])
MAX_ROWS: Final = 131_072
MAX_BODY: Final = 32 << 20
"""Bytes of a body, compressed or not: at most 4 MiB of names, and 14 MiB of rows with 13 columns."""
_PREFIX: Final = struct.Struct("<8sI")
_REST: Final = struct.Struct("<IIIQ16sIIIIIQQ")
"""Sizes and checksum of the body; nonce, run, rank; rows of the four tables; `first_unread` and `begun_ns`."""
HEAD_SIZE: Final = _PREFIX.size + _REST.size
SECTION_SIZES: Final = struct.Struct("<II")
"""Bytes of the JSON document and of the lines of names; the first bytes of a decompressed body."""

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
"""Fields shared by the operations of a call site. Each distinct combination is a row of the table `plans`."""
TABLES: Final = (OPERATION_COLUMNS, OPERATION_COLUMNS, STEP_COLUMNS, ACTIVITY_COLUMNS)

_Hex = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_Count = Annotated[int, Meta(ge=0, le=MAX_TIME_NS)]
_Signed = Annotated[int, Meta(ge=-MAX_TIME_NS, le=MAX_TIME_NS)]
_UInt32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
_UInt16 = Annotated[int, Meta(ge=0, lt=1 << 16)]
Plan = tuple[
    _UInt16,
    _UInt16,
    _UInt32,
    _UInt32,
    _UInt32,
    _UInt32,
    _UInt32,
    _UInt32,
    _UInt16 | None,
    _UInt16 | None,
    _UInt16,
    _UInt16,
    _UInt16,
]


def format_of(content: bytes) -> int | None:
    """Return the number of the format of a segment, from its first bytes; None for other bytes."""
    return content[len(MAGIC_START)] if content.startswith(MAGIC_START) and len(content) >= len(MAGIC) else None


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a segment. Fields not listed are as in `SegmentOrigin`.

    Attributes:
        size: Bytes of the compressed body, which follows the head.
        raw_size: Bytes of the decompressed body.
        checksum: CRC-32 of the compressed body.
        rows: Numbers of ended operations, operations in flight, steps and activities.
        first_unread: As in `Moment`.
    """

    size: int
    raw_size: int
    checksum: int
    nonce: int
    run_id: int
    rank: int
    rows: tuple[int, ...]
    first_unread: int
    begun_ns: int


def encode_head(origin: SegmentOrigin, moment: Moment, rows: tuple[int, ...], body: bytes, raw_size: int) -> bytes:
    """Encode the head of a segment. `raw_size` is the uncompressed size of the body."""
    rest = _REST.pack(
        len(body), raw_size, zlib.crc32(body), origin.nonce, origin.run_id.to_bytes(16, "little"), origin.rank,
        *rows, moment.first_unread, origin.begun_ns,
    )  # fmt: skip
    return _PREFIX.pack(MAGIC, zlib.crc32(rest)) + rest


def decode_head(content: bytes) -> Head | None:
    """Decode a head; return None for other bytes."""
    if len(content) < HEAD_SIZE:
        return None
    magic, checksum = _PREFIX.unpack_from(content)
    rest = content[_PREFIX.size : HEAD_SIZE]
    if magic != MAGIC or checksum != zlib.crc32(rest):
        return None
    size, raw_size, body_checksum, nonce, run_id, rank, *rows, first_unread, begun_ns = _REST.unpack(rest)
    if max(size, raw_size) > MAX_BODY or max(rows) > MAX_ROWS or rank >= MAX_RANKS or begun_ns >> 63:
        return None
    return Head(
        size,
        raw_size,
        body_checksum,
        nonce,
        int.from_bytes(run_id, "little"),
        rank,
        tuple(rows),
        first_unread,
        begun_ns,
    )


@dataclass(frozen=True, slots=True)
class SegmentDocument:
    """The JSON document in the body of a segment. Fields not listed are as in `SegmentOrigin` and `Moment`.

    Attributes:
        archived: As in `Segment`.
        plans: See `PLAN`.
        splits: Number of uneven exchanges.
        parts: Number of sizes in their splits.
        facts: Number of activities with sparse fields.
        calls: Number of activities with a remote call.
    """

    world_size: Annotated[int, Meta(ge=0, le=MAX_RANKS)]
    host: str
    boot_id: _Hex
    taken_ns: _Count
    wall_offset_ns: _Signed
    lost: _Count
    state: _UInt32
    failure: str
    archived: _Count
    plans: list[Plan]
    splits: Annotated[int, Meta(ge=0, le=2 * MAX_ROWS)] = 0
    parts: Annotated[int, Meta(ge=0, le=MAX_PARTS)] = 0
    facts: Annotated[int, Meta(ge=0, le=MAX_ROWS)] = 0
    calls: Annotated[int, Meta(ge=0, le=MAX_ROWS)] = 0
