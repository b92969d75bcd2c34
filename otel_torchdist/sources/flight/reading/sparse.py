"""Restores sparse members of tar archives, in the four formats of GNU tar."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from otel_torchdist.sources.flight.reading.limits import UnreadableError

Extents = list[tuple[int, int]]
"""Offset and size in bytes of each stored part."""
BLOCK: Final = 512
_MAX_DIGITS: Final = 20
_BAD: Final = "it is damaged (the map of a sparse member is wrong)"


def number_of(text: bytes) -> int:
    """Parse a decimal number.

    Raises:
        UnreadableError: It is not a number, or has more than 20 digits.
    """
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        raise UnreadableError(_BAD)
    return int(text)


def extents_of_header(block: bytes, first: int, count: int, parse: Callable[[bytes], int]) -> Extents:
    """Return the parts listed in a header of GNU's old format.

    Args:
        block: The header.
        first: Offset of its first field. Each field has 12 bytes.
        count: Maximum number of parts.
        parse: Parses a field.
    """
    fields = [parse(block[at : at + 12]) for at in range(first, first + 24 * count, 12)]
    return [(offset, size) for offset, size in zip(fields[::2], fields[1::2], strict=True) if offset or size]


def extents_of_pax(keywords: Mapping[bytes, bytes], repeated: list[bytes]) -> Extents | None:
    """Return the parts listed in pax keywords, in the formats 0.0 and 0.1; None without such keywords.

    Args:
        keywords: Keywords and their values.
        repeated: The values of `GNU.sparse.offset` and `GNU.sparse.numbytes` in order. Format 0.0 repeats them.
    """
    listing = keywords.get(b"GNU.sparse.map")
    numbers = repeated if listing is None else [number for number in listing.split(b",") if number]
    return _pairs(map(number_of, numbers), len(numbers)) if numbers or listing is not None else None


def extents_of_content(read: Callable[[int], bytes]) -> Extents:
    """Return the parts listed in the first blocks of the content, in format 1.0.

    Args:
        read: Reads exactly `n` bytes, and counts them as a header.
    """
    numbers = _lines(read)
    return _pairs(numbers, 2 * next(numbers))


def _lines(read: Callable[[int], bytes]) -> Iterator[int]:
    """Yield the number on each line. Blocks are read on demand."""
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
    """Return the content, with zeros between the parts.

    Args:
        extents: The parts.
        size: Bytes of the content.
        read: Reads exactly `n` bytes.

    Raises:
        UnreadableError: Parts overlap, or exceed `size`.
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
