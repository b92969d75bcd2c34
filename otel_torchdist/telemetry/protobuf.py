"""Protobuf's encoding by hand, where its objects would take too long: fields with their numbers, as bytes."""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1
_SMALL: Final = tuple(bytes([value]) for value in range(128))


def varint(value: int) -> bytes:
    """Encode a number of up to 64 bits; a negative one as its two's complement."""
    value &= _MASK
    if value < 128:
        return _SMALL[value]
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number(field: int, value: int) -> bytes:
    """Encode a field that holds a number, an enum or a bool."""
    return varint(field << 3) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """Encode a field of eight bytes."""
    return varint(field << 3 | 1) + value.to_bytes(8, "little")


def block(field: int, content: bytes) -> bytes:
    """Encode a field that holds bytes or a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    """Encode a field that holds text; what is not valid Unicode is replaced."""
    return block(field, content.encode("utf-8", "replace"))
