"""Compact columns of integers, with the standard library alone.

A column stores its values or their deltas, whichever need fewer bytes. The minimum is subtracted, and the differences
are stored in byte planes: the lowest byte of all values, then the next byte of all values, and so on. zlib compresses
planes of similar bytes well, and a column of equal values takes no plane at all.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub
from typing import Final

from otel_torchdist.errors import TorchDistError

MAX_VALUE: Final = (1 << 63) - 1
MIN_VALUE: Final = -MAX_VALUE - 1
_HEAD: Final = struct.Struct("<BBqq")
"""Bytes per value; 1 for deltas, otherwise 0; the minimum that was subtracted; the first value of a delta column."""
_VALUE_BYTES: Final = 8


class DamagedSegmentError(TorchDistError):
    """A segment of an archive cannot be read; the message gives the reason."""


def pack(values: Sequence[int], grows: bool = False) -> bytes:
    """Pack a column. Values beyond signed 64 bits are clamped. Only damaged records have such values.

    Args:
        values: The values.
        grows: Whether the values mostly grow, so that deltas are worth trying.
    """
    if not values:
        return b""
    lowest, highest = min(values), max(values)
    if lowest < MIN_VALUE or highest > MAX_VALUE:
        return pack([max(MIN_VALUE, min(value, MAX_VALUE)) for value in values], grows)
    width = _width(highest - lowest)
    if grows and width:
        deltas = list(map(sub, values[1:], values))
        lowest_delta, highest_delta = min(deltas), max(deltas)
        narrower = _width(highest_delta - lowest_delta)
        if narrower < width and MIN_VALUE <= lowest_delta <= MAX_VALUE:
            return _HEAD.pack(narrower, 1, lowest_delta, values[0]) + _planes(deltas, lowest_delta, narrower)
    return _HEAD.pack(width, 0, lowest, 0) + _planes(values, lowest, width)


def unpack(content: memoryview, offset: int, count: int) -> tuple[array[int], int]:
    """Unpack a column.

    Args:
        content: Packed columns.
        offset: Offset of this column.
        count: Number of its values.

    Returns:
        Its values, and the offset of the next column.

    Raises:
        DamagedSegmentError: The content is too short, or a value does not fit into 64 bits.
    """
    if not count:
        return array("q"), offset
    try:
        width, is_delta, base, first = _HEAD.unpack_from(content, offset)
    except struct.error as error:
        raise DamagedSegmentError("a column is truncated") from error
    offset += _HEAD.size
    stored = count - 1 if is_delta else count
    end = offset + width * stored
    if width > _VALUE_BYTES or is_delta > 1 or end > len(content):
        raise DamagedSegmentError("a column is larger than its segment")
    raw = bytearray(_VALUE_BYTES * stored)
    for plane in range(width):
        raw[plane::_VALUE_BYTES] = content[offset + plane * stored : offset + (plane + 1) * stored]
    numbers = array("Q")
    numbers.frombytes(raw)
    _to_native(numbers)
    values: Iterable[int] = map(base.__add__, numbers) if base else numbers
    try:
        return array("q", accumulate(values, initial=first) if is_delta else values), end
    except OverflowError as error:
        raise DamagedSegmentError("a value of a column does not fit into 64 bits") from error


def _width(spread: int) -> int:
    return (spread.bit_length() + 7) // 8


def _planes(column: Sequence[int], base: int, width: int) -> bytes:
    if not width:
        return b""
    numbers = array("Q", map(base.__rsub__, column) if base else column)
    _to_native(numbers)
    raw = numbers.tobytes()
    return b"".join([raw[plane::_VALUE_BYTES] for plane in range(width)])


def _to_native(numbers: array[int]) -> None:
    """Swap between the stored little-endian order and the host's byte order, in place."""
    if sys.byteorder == "big":
        numbers.byteswap()
