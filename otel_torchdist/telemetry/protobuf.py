"""Protobuf's wire format by hand, where protobuf's objects would be too slow."""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1
_SMALL: Final = tuple(bytes([value]) for value in range(128))


def varint(value: int) -> bytes:
    """Encode a number of up to 64 bits, in two's complement if negative."""
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
    """Encode a number, enum or bool field."""
    return varint(field << 3) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """Encode a field of eight bytes, little-endian."""
    return varint(field << 3 | 1) + value.to_bytes(8, "little")


def block(field: int, content: bytes) -> bytes:
    """Encode a bytes or message field."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    """Encode a text field. Invalid Unicode is replaced."""
    return block(field, content.encode("utf-8", "replace"))
