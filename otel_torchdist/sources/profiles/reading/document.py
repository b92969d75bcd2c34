"""Opens a trace: from a file's bytes to its parts, none of which is decoded before it is needed.

A trace of a few steps has millions of events. They are taken from the file some megabytes at a time, and of those that
are no communication, only kind and name are looked at.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from otel_torchdist.errors import TorchDistError
from otel_torchdist.model.naming import readable
from otel_torchdist.system.files.unpacking import gunzip

MAX_TRACE_BYTES: Final = 1 << 30
"""Unpacked. Reading takes little more memory than that, and a second time as much if it has to be mended."""
MAX_MENDED_BYTES: Final = MAX_TRACE_BYTES + (MAX_TRACE_BYTES >> 2)
"""Each bare backslash becomes two."""
CHUNK_BYTES: Final = 4 << 20
PIECE_BYTES: Final = 1 << 20
MAX_REASON: Final = 200
CUT_OFF: Final = "its end is missing or damaged: it is read up to there"
_GZIP: Final = b"\x1f\x8b"
_END: Final = b"]}"
_CUTS: Final = 16
"""Places near the end of a truncated file that are tried as the end of its last whole event."""
_NO_NUMBERS: Final = re.compile(rb"(?<=[:\[,\s])-?(?:nan|NaN|inf|Infinity)(?=\s*[,}\]])")
_OF_UNICODE: Final = re.compile(rb"\\u(?=[0-9a-fA-F]{4})")
_ESCAPED: Final = tuple(b"\\%c" % letter for letter in b'"/bfnrt')
_CONTROLS: Final = bytes.maketrans(bytes(range(32)), b" " * 32)
_PAIR, _BACKSLASH = b"\1", b"\2"
"""Stand for two backslashes and for one while others are doubled; mended content has no such bytes."""


class TraceError(TorchDistError):
    """A file is no trace that can be read; the message says why."""


ABSENT: Final = msgspec.Raw()


class TraceDocument(msgspec.Struct, gc=False):
    """The parts of a trace, of either kind; those that it does not have are `ABSENT`."""

    traceEvents: msgspec.Raw = ABSENT
    schemaVersion: msgspec.Raw = ABSENT
    deviceProperties: msgspec.Raw = ABSENT
    distributedInfo: msgspec.Raw = ABSENT
    baseTimeNanoseconds: msgspec.Raw = ABSENT
    host_name: msgspec.Raw = ABSENT
    nodes: msgspec.Raw = ABSENT
    schema: msgspec.Raw = ABSENT
    pid: msgspec.Raw = ABSENT


_DOCUMENTS: Final = msgspec.json.Decoder(TraceDocument)
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
MAX_SPAN: Final = 16 << 20
"""Bytes in which an event ends: of a list of numbers, these are eight million objects."""
_BETWEEN: Final = re.compile(rb"\}\s*,\s*(?=\{)")
"""Where one event ends and the next begins; in an event's arguments, too, if they hold a list of objects."""
MAX_BORDERS: Final = 256


def unpacked(content: bytes, most: int = MAX_TRACE_BYTES) -> tuple[bytes, bool]:
    """Unpack a file that was compressed by itself; of a truncated one, as much as there is.

    Args:
        content: The file.
        most: Maximum bytes of its content.

    Returns:
        The content, and whether it is all of it.

    Raises:
        TraceError: It is too large, or damaged.
    """
    if not content.startswith(_GZIP):
        return content, True
    found, error = gunzip(content, most + 1)
    if error is not None and not found:
        raise TraceError(f"it is damaged ({error})") from error
    if len(found) > most:
        raise TraceError(f"it unpacks to more than {most >> 20} MiB; trace fewer steps")
    return found, error is None


def open_document(content: bytes) -> tuple[TraceDocument, str]:
    """Find the parts of a trace; one that was cut off while it was written is read up to there.

    Args:
        content: The whole file, unpacked.

    Returns:
        The parts, and what is wrong with the file, or ''.

    Raises:
        TraceError: It is not such a document.
    """
    if content.lstrip()[:1] != b"{":
        raise TraceError("it is not the JSON of a trace")
    try:
        return _DOCUMENTS.decode(content), ""
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        why = readable(str(error) or type(error).__name__, MAX_REASON)
    sound = mended(content)
    try:
        return _DOCUMENTS.decode(sound), ""  # the profiler itself writes `nan` and paths with bare backslashes
    except (msgspec.DecodeError, RecursionError, ValueError):
        pass
    found = _before_the_cut(sound)
    if found is None:
        raise TraceError(f"it is damaged ({why})")
    return found, CUT_OFF


def mended(content: bytes, piece_bytes: int = PIECE_BYTES) -> bytearray:
    """Replace what JSON does not allow and writers of traces write all the same.

    It is done in pieces, because `re.sub` and `bytes.replace` take memory for each of the parts between two matches.

    Args:
        content: The content of a trace.
        piece_bytes: Minimum bytes of a piece.

    Raises:
        TraceError: A piece has no end, or the outcome is too large.
    """
    found = bytearray()
    begin = 0
    while begin < len(content):
        end = _end_of_piece(content, begin, piece_bytes)
        # Each piece begins with the comma before it, by which a pattern knows that a number can follow.
        before = min(begin, 1)
        found += memoryview(_mended_piece(content[begin - before : end]))[before:]
        if len(found) > MAX_MENDED_BYTES:
            raise TraceError(f"once it is mended, it has more than {MAX_MENDED_BYTES >> 20} MiB; trace fewer steps")
        begin = end
    return found


def _end_of_piece(content: bytes, begin: int, least: int) -> int:
    """Return the place behind a comma, which is part of no escape and no number."""
    if len(content) - begin <= least:
        return len(content)
    comma = content.find(b",", begin + least, begin + MAX_SPAN)
    if comma >= 0:
        return comma + 1
    if len(content) - begin > MAX_SPAN:
        raise TraceError(f"it is damaged, and a value in it has more than {(MAX_SPAN - least) >> 20} MiB")
    return len(content)


def _mended_piece(piece: bytes) -> bytes:
    piece = _NO_NUMBERS.sub(b"null", piece.translate(_CONTROLS))
    if b"\\" not in piece:
        return piece
    piece = piece.replace(rb"\\", _PAIR)
    for escaped in _ESCAPED:
        piece = piece.replace(escaped, _BACKSLASH + escaped[1:])
    piece = _OF_UNICODE.sub(_BACKSLASH + b"u", piece)
    return piece.replace(b"\\", rb"\\").replace(_PAIR, rb"\\").replace(_BACKSLASH, b"\\")


def _before_the_cut(content: bytearray) -> TraceDocument | None:
    """The parts of a file that ends too early, up to its last whole event; None if it is damaged in another way.

    Args:
        content: The content, which is changed: a copy for each try would be as large.
    """
    end = len(content)
    content += bytes(len(_END))
    view = memoryview(content)
    for _ in range(_CUTS):
        end = content.rfind(b"}", 0, end)
        if end < 0:
            return None
        behind = slice(end + 1, end + 1 + len(_END))
        replaced = bytes(view[behind])
        view[behind] = _END
        try:
            return _DOCUMENTS.decode(view[: behind.stop])
        except (msgspec.DecodeError, RecursionError, ValueError):
            view[behind] = replaced
    return None


def decoded(part: msgspec.Raw, kind: Any, otherwise: Any) -> Any:
    """Decode a part of a document; `otherwise` if it is absent, too large, or something else than expected."""
    if part is ABSENT or memoryview(part).nbytes > MAX_SPAN:
        return otherwise
    try:
        return msgspec.json.decode(part, type=kind)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return otherwise


def items_of(part: msgspec.Raw, chunk_bytes: int = CHUNK_BYTES) -> Iterator[msgspec.Raw]:
    """Yield the items of a list, some megabytes at a time: a short file could unpack to a list of a billion items.

    Args:
        part: The list.
        chunk_bytes: Bytes that are decoded together, if an item ends soon behind them.

    Raises:
        TraceError: It is no list.
    """
    view = memoryview(part)
    if bytes(view[:1]) != b"[":
        raise TraceError("its events are no list")
    begin, end = 1, len(view) - 1
    while begin < end:
        stop, following, found = _some(view, begin, end, chunk_bytes)
        yield from found
        if stop == following == end:
            return
        begin = following


def _some(view: memoryview, begin: int, end: int, chunk_bytes: int) -> tuple[int, int, list[msgspec.Raw]]:
    """Decode items from `begin` on; returns where they end, where the next one begins, and the items."""
    if end - begin > chunk_bytes:
        borders = _BETWEEN.finditer(view, begin + chunk_bytes, min(begin + MAX_SPAN, end))
        for border in itertools.islice(borders, MAX_BORDERS):
            stop = border.start() + 1
            with contextlib.suppress(msgspec.DecodeError, RecursionError, ValueError):
                return stop, border.end(), _ITEMS.decode(b"[%b]" % view[begin:stop])
    if end - begin > MAX_SPAN:
        raise TraceError(f"its events are no objects, or one of them has more than {MAX_SPAN >> 20} MiB")
    return end, end, _ITEMS.decode(b"[%b]" % view[begin:end])
