"""Restores members of tar archives that are stored without their zeros, in the four formats of GNU tar."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from otel_torchdist.sources.flight.reading.limits import UnreadableError

Extents = list[tuple[int, int]]
"""Offset and size in bytes of each part that is stored."""
BLOCK: Final = 512
_MAX_DIGITS: Final = 20
_BAD: Final = "it is damaged (the map of a sparse member is wrong)"


def number_of(text: bytes) -> int:
    """Parse a decimal number.

    Raises:
        UnreadableError: It is none, or has more than 20 digits.
    """
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        raise UnreadableError(_BAD)
    return int(text)


def extents_of_header(block: bytes, first: int, count: int, parsed: Callable[[bytes], int]) -> Extents:
    """Return the parts that a header of GNU's old format lists.

    Args:
        block: The header.
        first: Offset of the first of its fields, each of 12 bytes.
        count: Maximum number of parts.
        parsed: Parses a field.
    """
    fields = [parsed(block[at : at + 12]) for at in range(first, first + 24 * count, 12)]
    return [(offset, size) for offset, size in zip(fields[::2], fields[1::2], strict=True) if offset or size]


def extents_of_pax(facts: Mapping[bytes, bytes], listed: list[bytes]) -> Extents | None:
    """Return the parts that keywords of pax list, in the formats 0.0 and 0.1; `None` if there are no such keywords.

    Args:
        facts: Keywords and their values.
        listed: The values of `GNU.sparse.offset` and `GNU.sparse.numbytes` in their order; format 0.0 repeats them.
    """
    listing = facts.get(b"GNU.sparse.map")
    numbers = listed if listing is None else [number for number in listing.split(b",") if number]
    return _pairs(map(number_of, numbers), len(numbers)) if numbers or listing is not None else None


def extents_of_content(read: Callable[[int], bytes]) -> Extents:
    """Return the parts that the first blocks of the content list, in format 1.0.

    Args:
        read: Reads exactly `n` bytes, and counts them as a header.
    """
    numbers = _lines(read)
    return _pairs(numbers, 2 * next(numbers))


def _lines(read: Callable[[int], bytes]) -> Iterator[int]:
    """Yield the number on each line; blocks are read when they are needed."""
    rest = b""
    while True:
        *lines, rest = (rest + read(BLOCK)).split(b"\n")
        if len(rest) > BLOCK:
            raise UnreadableError(_BAD)
        yield from map(number_of, lines)


def _pairs(numbers: Iterator[int], count: int) -> Extents:
    if count % 2:
        raise UnreadableError(_BAD)
    # Zipping an iterator with itself pairs its items.
    return [(next(numbers), next(numbers)) for _ in range(count // 2)]


def filled(extents: Extents, size: int, read: Callable[[int], bytes]) -> bytes:
    """Return the content of `size` bytes, with zeros between the parts.

    Args:
        extents: The parts.
        size: Bytes of the content.
        read: Reads exactly `n` bytes.

    Raises:
        UnreadableError: The parts overlap, or lie behind the end.
    """
    content = io.BytesIO(bytes(size))
    end = 0
    for offset, length in extents:
        if not end <= offset <= offset + length <= size:
            raise UnreadableError(_BAD)
        content.seek(offset)
        content.write(read(length))
        end = offset + length
    return content.getvalue()
