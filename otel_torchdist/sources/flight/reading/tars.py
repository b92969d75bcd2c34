"""Reads untrusted tar archives, as a stream and within limits.

Python's `tarfile` reads headers of any length into memory, recurses for each header of a member, and has had endless
loops and quadratic patterns (CVE-2019-20907, CVE-2024-6232, CVE-2025-8194). This reader takes time linear in the
bytes. It supports the formats of V7, ustar, GNU and pax.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.sources.flight.reading.limits import ArchiveLimits, UnreadableError
from otel_torchdist.sources.flight.reading.sparse import (
    BLOCK,
    Extents,
    extents_of_content,
    extents_of_header,
    extents_of_pax,
    filled,
    number_of,
)
from otel_torchdist.system.files.unpacking import Readable

MAX_EXTENDED: Final = 1 << 20
"""Upper bound on the bytes of an extended header: a long name, or pax keywords, which hold file attributes."""
_MAX_SIZE: Final = 1 << 62
_MAX_LENGTH: Final = 10
"""Upper bound on the digits of a pax record's length, with the space behind them."""
_CUT_OFF: Final = "its end is missing"
_SKIPPED_AT_ONCE: Final = 1 << 20
_REGULAR: Final = (b"0", b"\0", b"7", b"S")
_WITHOUT_CONTENT: Final = (b"1", b"2", b"3", b"4", b"5", b"6")
_SPARSE: Final = b"S"
_LONG_NAME, _LONG_LINK = b"L", b"K"
_KEYWORDS, _SOLARIS_KEYWORDS, _GLOBAL_KEYWORDS = b"x", b"X", b"g"
_HEADER_EXTENTS, _BLOCK_EXTENTS = 4, 21
"""Number of sparse parts listed in a header of GNU's old format, and in each block after it."""
_KNOWN_KEYWORDS: Final = frozenset(
    {b"path", b"size", *(b"GNU.sparse." + word for word in (b"name", b"map", b"size", b"major", b"minor", b"realsize"))}
)


@dataclass(slots=True)
class _Extended:
    """The extended headers before a member.

    Attributes:
        keywords: Values of pax keywords; a long name is stored as `path`.
        parts: Values of the keywords that repeat: offsets and sizes of sparse parts.
    """

    keywords: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    parts: list[bytes] = field(default_factory=list[bytes])


@dataclass(frozen=True, slots=True)
class _Head:
    """The first block of a member or of an extended header.

    Attributes:
        kind: The type flag.
        name: The name, with its prefix.
        size: Bytes of the stored content.
        block: The raw block.
    """

    kind: bytes
    name: bytes
    size: int
    block: bytes


def read_tar(stream: Readable, max_bytes: int, limits: ArchiveLimits) -> Iterator[tuple[str, bytes | None]]:
    """Yield name and content of each regular file; None for the content of more than `max_bytes`.

    Args:
        stream: The decompressed archive. It counts its own bytes.
        max_bytes: Maximum bytes of one member.
        limits: Counts members, headers, and the zeros of sparse members.

    Raises:
        UnreadableError: The archive is damaged, or exceeds a limit.
    """
    source = _Source(stream, limits)
    global_keywords: dict[bytes, bytes] = {}
    extended = _Extended()
    block = source.block()
    if not block:
        raise UnreadableError("it is empty")
    while block.strip(b"\0"):  # a block of zeros ends the archive
        head = _head(block, source.limits)
        if head.kind in (_KEYWORDS, _SOLARIS_KEYWORDS):
            _add_keywords(extended, source.extended(head.size))
        elif head.kind == _GLOBAL_KEYWORDS:
            global_header = _Extended()
            _add_keywords(global_header, source.extended(head.size))
            global_keywords.update(global_header.keywords)
        elif head.kind == _LONG_NAME:
            extended.keywords.setdefault(b"path", _text(source.extended(head.size)))
        elif head.kind == _LONG_LINK:
            source.extended(head.size)
        else:
            limits.add_member()
            extended.keywords = {**global_keywords, **extended.keywords}
            yield from _read_member(source, head, extended, max_bytes)
            extended = _Extended()
        block = source.block()


class _Source:
    """A stream that is read in pieces of exact sizes."""

    def __init__(self, stream: Readable, limits: ArchiveLimits) -> None:
        self._stream = stream
        self.limits = limits

    def block(self) -> bytes:
        """Return the next block; b'' at the end of the stream."""
        content = self._read_pieces(BLOCK)
        if content and len(content) < BLOCK:
            raise EOFError(_CUT_OFF)
        return content

    def exactly(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        content = self._read_pieces(size)
        if len(content) < size:
            raise EOFError(_CUT_OFF)
        return content

    def header(self, size: int) -> bytes:
        """Return the next `size` bytes, counted as a header."""
        self.limits.add_header(size)
        return self.exactly(size)

    def extended(self, size: int) -> bytes:
        """Return the content of an extended header."""
        if size > MAX_EXTENDED:
            raise UnreadableError(f"a header in it has more than {MAX_EXTENDED >> 20} MiB; the rest is not read")
        content = self.header(size)
        self.skip(-size % BLOCK)
        return content

    def skip(self, size: int) -> None:
        """Skip `size` bytes."""
        while size > 0:
            skipped = len(self._stream.read(min(size, _SKIPPED_AT_ONCE)))
            if not skipped:
                raise EOFError(_CUT_OFF)
            size -= skipped

    def _read_pieces(self, size: int) -> bytes:
        content = self._stream.read(size)
        if len(content) == size or not content:
            return content
        whole = io.BytesIO()  # `getvalue` does not copy, unlike a join of parts
        while content:
            whole.write(content)
            content = self._stream.read(size - whole.tell()) if whole.tell() < size else b""
        return whole.getvalue()


def _head(block: bytes, limits: ArchiveLimits) -> _Head:
    limits.add_header(BLOCK)
    _verify_checksum(block)
    kind = block[156:157]
    name, prefix = _text(block[:100]), _text(block[345:500])
    if prefix and kind not in (_LONG_NAME, _LONG_LINK, _SPARSE):
        name = prefix + b"/" + name
    if kind == b"\0" and name.endswith(b"/"):  # V7 stores folders so
        kind = b"5"
    return _Head(kind, name, _number(block[124:136]), block)


def _verify_checksum(block: bytes) -> None:
    """Check the sum of a header's bytes. Old programs summed signed bytes."""
    expected = _number(block[148:156])
    summed = block[:148] + b"        " + block[156:]
    unsigned = sum(summed)
    if expected not in (unsigned, unsigned - 256 * sum(byte > 127 for byte in summed)):
        raise UnreadableError("it is damaged (a header's checksum is wrong)")


def _read_member(
    source: _Source, head: _Head, extended: _Extended, max_bytes: int
) -> Iterator[tuple[str, bytes | None]]:
    """Yield a member if it is a regular file, and advance to the end of its content."""
    keywords = extended.keywords
    stored = number_of(keywords[b"size"]) if b"size" in keywords else head.size
    if head.kind in _WITHOUT_CONTENT:
        return
    if stored > _MAX_SIZE:
        raise UnreadableError("it is damaged (the size of a member is wrong)")
    padded = stored + -stored % BLOCK
    if head.kind not in _REGULAR:
        source.skip(padded)
        return
    name = keywords.get(b"GNU.sparse.name") or keywords.get(b"path") or head.name
    reader = _StoredContent(source, stored)
    size, extents = _extents(source, head, extended, reader)
    content = None
    if extents is None:
        content = reader.read(stored) if stored <= max_bytes else None
    elif size <= max_bytes:
        source.limits.add_output(size)
        content = filled(extents, size, reader.read)
    yield name.decode("utf-8", "surrogateescape"), content
    source.skip(padded - reader.consumed)


class _StoredContent:
    """The stored content of a member."""

    def __init__(self, source: _Source, size: int) -> None:
        self._source = source
        self._size = size
        self.consumed = 0

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        return self._read_counted(size, self._source.exactly)

    def read_header(self, size: int) -> bytes:
        """Read exactly `size` bytes of a sparse map, counted as a header."""
        return self._read_counted(size, self._source.header)

    def _read_counted(self, size: int, read: Callable[[int], bytes]) -> bytes:
        self.consumed += size
        if self.consumed > self._size:
            raise UnreadableError("it is damaged (a member is longer than it states)")
        return read(size)


def _extents(source: _Source, head: _Head, extended: _Extended, reader: _StoredContent) -> tuple[int, Extents | None]:
    """Return the size and the stored parts of a sparse member; None for the parts of other members."""
    if head.kind == _SPARSE:
        return _extents_of_gnu(head, source)
    keywords = extended.keywords
    if keywords.get(b"GNU.sparse.major") == b"1" and keywords.get(b"GNU.sparse.minor") == b"0":
        return number_of(keywords.get(b"GNU.sparse.realsize", b"")), extents_of_content(reader.read_header)
    extents = extents_of_pax(keywords, extended.parts)
    return (0, None) if extents is None else (number_of(keywords.get(b"GNU.sparse.size", b"")), extents)


def _extents_of_gnu(head: _Head, source: _Source) -> tuple[int, Extents]:
    extents = extents_of_header(head.block, 386, _HEADER_EXTENTS, _number)
    has_more = head.block[482]
    while has_more:
        more = source.header(BLOCK)  # not included in the stated size
        extents += extents_of_header(more, 0, _BLOCK_EXTENTS, _number)
        has_more = more[504]
    return _number(head.block[483:495]), extents


def _add_keywords(extended: _Extended, content: bytes) -> None:
    """Parse pax records: the length in decimal, a space, a keyword, `=`, a value, and a line break."""
    position = 0
    while position < len(content) and content[position]:
        space = content.find(b" ", position, position + _MAX_LENGTH)
        end = position + int(content[position:space]) if space > position and content[position:space].isdigit() else 0
        equals = content.find(b"=", space, end) if space < end <= len(content) else -1
        if equals < 0:
            raise UnreadableError("it is damaged (an extended header is wrong)")
        keyword, value = content[space + 1 : equals], content[equals + 1 : end - 1]
        if keyword in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            extended.parts.append(value)
        elif keyword in _KNOWN_KEYWORDS:
            extended.keywords[keyword] = value
        position = end


def _text(content: bytes) -> bytes:
    return content.partition(b"\0")[0]


def _number(content: bytes) -> int:
    """Parse a number: octal, or binary if the first bit is set."""
    if content[0] == 0x80:
        return int.from_bytes(content[1:], "big")
    digits = content.partition(b"\0")[0].strip()
    if not digits:
        return 0
    try:
        number = int(digits, 8)
    except ValueError:
        number = -1
    if number < 0:
        raise UnreadableError("it is damaged (a number in a header is wrong)")
    return number
