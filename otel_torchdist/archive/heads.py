"""The head of a segment: fixed bytes with a checksum of their own, so that segments are found without reading them."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from otel_torchdist.archive.model import Moment, SegmentOrigin
from otel_torchdist.tape.layout import MAX_RANKS

MAGIC: Final = b"OTDARCH\x01"
MAX_ROWS: Final = 131_072
MAX_BODY: Final = 32 << 20
"""Bytes of a body, compressed or not: names are at most 4 MiB, and rows of 13 columns at most 14 MiB."""
_BEGIN: Final = struct.Struct("<8sI")
_REST: Final = struct.Struct("<IIIQ16sIIIIIQQ")
"""Sizes and checksum of the body; nonce, run, rank; rows of the four tables; through and begun_ns."""
HEAD_SIZE: Final = _BEGIN.size + _REST.size


@dataclass(frozen=True, slots=True)
class Head:
    """What the head of a segment says.

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
