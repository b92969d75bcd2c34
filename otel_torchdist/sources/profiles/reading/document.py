"""Opens a trace: splits a file's bytes into parts, which are decoded on demand.

A trace of a few steps has millions of events. They are decoded a few megabytes at a time. Of events other than
communication, only kind and name are read.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from otel_torchdist.errors import TorchDistError
from otel_torchdist.model.text import readable
from otel_torchdist.system.files.unpacking import gunzip

MAX_TRACE_BYTES: Final = 1 << 30
"""Upper bound on a decompressed trace. Reading takes little more memory; repairing takes as much again."""
MAX_REPAIRED_BYTES: Final = MAX_TRACE_BYTES + (MAX_TRACE_BYTES >> 2)
"""Upper bound on a repaired trace, where each bare backslash becomes two."""
CHUNK_BYTES: Final = 4 << 20
"""Bytes of items decoded at a time."""
PIECE_BYTES: Final = 1 << 20
"""Bytes repaired at a time."""
MAX_REASON: Final = 200
CUT_OFF: Final = "its end is missing or damaged: it is read up to that point"
_GZIP: Final = b"\x1f\x8b"
_END: Final = b"]}"
_MAX_CUTS: Final = 16
"""Number of positions near the end of a truncated file tried as the end of its last whole event."""
_NON_JSON_NUMBERS: Final = re.compile(rb"(?<=[:\[,\s])-?(?:nan|NaN|inf|Infinity)(?=\s*[,}\]])")
_UNICODE_ESCAPE: Final = re.compile(rb"\\u(?=[0-9a-fA-F]{4})")
_ESCAPED: Final = tuple(b"\\%c" % letter for letter in b'"/bfnrt')
_CONTROLS: Final = bytes.maketrans(bytes(range(32)), b" " * 32)
_BACKSLASH_PAIR, _BACKSLASH = b"\1", b"\2"
"""Placeholders for two backslashes and for one, while bare backslashes are doubled. `_CONTROLS` removes these bytes."""


class TraceError(TorchDistError):
    """A file is not a readable trace; the message gives the reason."""


ABSENT: Final = msgspec.Raw()


class TraceDocument(msgspec.Struct, gc=False):
    """The parts of a trace, of either kind; missing parts are `ABSENT`."""

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
MAX_EVENT_BYTES: Final = 16 << 20
"""Upper bound on the bytes of an event: enough for a list of eight million numbers."""
_EVENT_BORDER: Final = re.compile(rb"\}\s*,\s*(?=\{)")
"""The border between two events. It may also match within an event's arguments that hold a list of objects."""
MAX_BORDERS: Final = 256
"""Upper bound on the borders that are tried as the end of a chunk."""


def unpacked(content: bytes, max_bytes: int = MAX_TRACE_BYTES) -> tuple[bytes, bool]:
    """Decompress a gzip file, up to its end if it is truncated. Return other content unchanged.

    Args:
        content: The file.
        max_bytes: Maximum decompressed bytes.

    Returns:
        The content, and whether it is complete.

    Raises:
        TraceError: It is too large, or damaged.
    """
    if not content.startswith(_GZIP):
        return content, True
    unzipped, error = gunzip(content, max_bytes + 1)
    if error is not None and not unzipped:
        raise TraceError(f"it is damaged ({error})") from error
    if len(unzipped) > max_bytes:
        raise TraceError(f"it unpacks to more than {max_bytes >> 20} MiB; trace fewer steps")
    return unzipped, error is None


def open_document(content: bytes) -> tuple[TraceDocument, str]:
    """Find the parts of a trace. A truncated trace is read up to its last whole event.

    Args:
        content: The whole file, decompressed.

    Returns:
        The parts, and the damage of the file, or ''.

    Raises:
        TraceError: It is not a JSON trace, or damaged beyond repair.
    """
    if content.lstrip()[:1] != b"{":
        raise TraceError("it is not the JSON of a trace")
    try:
        return _DOCUMENTS.decode(content), ""
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        reason = readable(str(error) or type(error).__name__, MAX_REASON)
    repaired = repair(content)
    try:
        return _DOCUMENTS.decode(repaired), ""  # the profiler itself writes `nan` and paths with bare backslashes
    except (msgspec.DecodeError, RecursionError, ValueError):
        pass
    document = _decode_truncated(repaired)
    if document is None:
        raise TraceError(f"it is damaged ({reason})")
    return document, CUT_OFF


def repair(content: bytes, piece_bytes: int = PIECE_BYTES) -> bytearray:
    """Replace invalid JSON that trace writers produce: `nan`, control characters, bare backslashes.

    Content is processed in pieces: `re.sub` and `bytes.replace` allocate memory for each part between two matches.

    Args:
        content: The content of a trace.
        piece_bytes: Minimum bytes of a piece.

    Raises:
        TraceError: A piece has no end, or the result is too large.
    """
    repaired = bytearray()
    begin = 0
    while begin < len(content):
        end = _end_of_piece(content, begin, piece_bytes)
        # Each piece includes the comma before it, which `_NON_JSON_NUMBERS` may need.
        overlap = min(begin, 1)
        repaired += memoryview(_repair_piece(content[begin - overlap : end]))[overlap:]
        if len(repaired) > MAX_REPAIRED_BYTES:
            raise TraceError(f"once repaired, it has more than {MAX_REPAIRED_BYTES >> 20} MiB; trace fewer steps")
        begin = end
    return repaired


def _end_of_piece(content: bytes, begin: int, min_bytes: int) -> int:
    """Return the end of a piece, behind a comma: a comma is never part of an escape or a number."""
    if len(content) - begin <= min_bytes:
        return len(content)
    comma = content.find(b",", begin + min_bytes, begin + MAX_EVENT_BYTES)
    if comma >= 0:
        return comma + 1
    if len(content) - begin > MAX_EVENT_BYTES:
        raise TraceError(
            f"it is damaged, and one of its values has more than {(MAX_EVENT_BYTES - min_bytes) >> 20} MiB"
        )
    return len(content)


def _repair_piece(piece: bytes) -> bytes:
    piece = _NON_JSON_NUMBERS.sub(b"null", piece.translate(_CONTROLS))
    if b"\\" not in piece:
        return piece
    piece = piece.replace(rb"\\", _BACKSLASH_PAIR)
    for escaped in _ESCAPED:
        piece = piece.replace(escaped, _BACKSLASH + escaped[1:])
    piece = _UNICODE_ESCAPE.sub(_BACKSLASH + b"u", piece)
    return piece.replace(b"\\", rb"\\").replace(_BACKSLASH_PAIR, rb"\\").replace(_BACKSLASH, b"\\")


def _decode_truncated(content: bytearray) -> TraceDocument | None:
    """Return the parts of a truncated file, up to its last whole event; None if it is damaged in another way.

    Args:
        content: The content. It is changed in place, because each attempt would need a copy of it.
    """
    end = len(content)
    content += bytes(len(_END))
    view = memoryview(content)
    for _ in range(_MAX_CUTS):
        end = content.rfind(b"}", 0, end)
        if end < 0:
            return None
        tail = slice(end + 1, end + 1 + len(_END))
        replaced = bytes(view[tail])
        view[tail] = _END
        try:
            return _DOCUMENTS.decode(view[: tail.stop])
        except (msgspec.DecodeError, RecursionError, ValueError):
            view[tail] = replaced
    return None


def decoded(part: msgspec.Raw, kind: Any, default: Any) -> Any:
    """Decode a part of a document; return `default` if it is absent, too large, or of another type."""
    if part is ABSENT or memoryview(part).nbytes > MAX_EVENT_BYTES:
        return default
    try:
        return msgspec.json.decode(part, type=kind)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return default


def items_of(part: msgspec.Raw, chunk_bytes: int = CHUNK_BYTES) -> Iterator[msgspec.Raw]:
    """Yield the items of a list, decoded a few megabytes at a time: a small gzip file may hold a billion items.

    Args:
        part: The list.
        chunk_bytes: Minimum bytes decoded at a time.

    Raises:
        TraceError: The part is not a list of objects.
    """
    view = memoryview(part)
    if bytes(view[:1]) != b"[":
        raise TraceError("its events are not a list")
    begin, end = 1, len(view) - 1
    while begin < end:
        stop, following, items = _chunk(view, begin, end, chunk_bytes)
        yield from items
        if stop == following == end:
            return
        begin = following


def _chunk(view: memoryview, begin: int, end: int, chunk_bytes: int) -> tuple[int, int, list[msgspec.Raw]]:
    """Decode items from `begin` on. Return the end of the last item, the start of the next, and the items."""
    if end - begin > chunk_bytes:
        borders = _EVENT_BORDER.finditer(view, begin + chunk_bytes, min(begin + MAX_EVENT_BYTES, end))
        for border in itertools.islice(borders, MAX_BORDERS):
            stop = border.start() + 1
            with contextlib.suppress(msgspec.DecodeError, RecursionError, ValueError):
                return stop, border.end(), _ITEMS.decode(b"[%b]" % view[begin:stop])
    if end - begin > MAX_EVENT_BYTES:
        raise TraceError(f"its events are not objects, or one of them has more than {MAX_EVENT_BYTES >> 20} MiB")
    return end, end, _ITEMS.decode(b"[%b]" % view[begin:end])
