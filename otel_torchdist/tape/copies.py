"""Copies of tapes for other machines."""

from __future__ import annotations

import dataclasses
from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.tape import layout
from otel_torchdist.tape.identity import decode_identity, encode_identity
from otel_torchdist.tape.layout import Word

_STRIDE: Final = layout.RECORD_SIZE // 8
_COMPLETED: Final = layout.WORDS_OFFSET // 8 + Word.COMPLETED


def detached(content: bytes, newest: int | None = None) -> bytes:
    """Return the copy of a tape, without the PID namespace of its writer: no process here is its writer.

    So no reader of the copy asks the kernel about the pid on it, not even on the same machine.

    Args:
        content: The tape, read while its rank may have been writing. Readers leave incomplete records out.
        newest: Number of newest records to keep; older ones are kept only if they have no end. None for all.

    Returns:
        The copy; `content` unchanged if it is not a tape that this version can read.
    """
    try:
        identity = decode_identity(content[: layout.IDENTITY_SIZE], "a tape")
    except TapeError:
        return content
    copy = bytearray(content)
    copy[: layout.IDENTITY_SIZE] = encode_identity(dataclasses.replace(identity, pid_namespace=0))
    end = layout.RING_OFFSET + identity.capacity * layout.RECORD_SIZE
    if newest is not None and end <= len(copy):
        _clear_older(memoryview(copy)[layout.RING_OFFSET : end], newest)
    return bytes(copy)


def _clear_older(ring: memoryview, newest: int) -> None:
    words = ring.cast("Q")
    numbers, ends = words[::_STRIDE].tolist(), words[_COMPLETED::_STRIDE].tolist()
    oldest_kept = max(numbers, default=0) - newest + 1
    empty = bytes(layout.RECORD_SIZE)
    for slot, (number, ended) in enumerate(zip(numbers, ends, strict=True)):
        if ended and number < oldest_kept:
            ring[slot * layout.RECORD_SIZE : (slot + 1) * layout.RECORD_SIZE] = empty
    words.release()
