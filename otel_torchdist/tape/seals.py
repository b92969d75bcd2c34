"""Checksums inside words: they prove that a word belongs to its record and is not damaged."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from otel_torchdist.model.kinds import How
from otel_torchdist.tape.layout import (
    CHECK_MODULUS,
    CRC_MODULUS,
    LIVE_VALUE_MASK,
    MAX_DURATION_NS,
    WORDS,
    LiveWord,
    Word,
)

_HOW: Final = {int(how): how for how in How}


def payload_checksum(number: int, payload: bytes | memoryview) -> int:
    """Return the CRC32 of a payload, seeded with its record's number: an old payload fails under a new number."""
    return zlib.crc32(payload, number % CRC_MODULUS)


def run_id_seal(run_id: int, state: int) -> int:
    """Return the RUN_ID_STATE word: the state, with a checksum of the run id."""
    return (zlib.crc32(run_id.to_bytes(16, "little"), state) << 8) | state


def seal(number: int, value: int, how: int) -> int:
    """Pack a duration or a name's id, and a `How`, into a word that is valid only for record `number`.

    The low 12 bits are a checksum of content and record number, modulo a prime. A word stored after its slot has been
    reused fails the check of the new record, and so does a word with any single flipped bit.

    Args:
        number: The record's number.
        value: Nanoseconds since `entered_ns`, or an id; clipped to 48 bits, which is 78 hours.
        how: A `How`.
    """
    content = (max(0, min(value, MAX_DURATION_NS)) << 4) | how
    return (content << 12) | ((content + number) % CHECK_MODULUS)


def abandoned_words(number: int) -> bytes:
    """Return the words of a record that was abandoned right after its entry."""
    return struct.pack(f"={WORDS}Q", *(seal(number, 1, How.ABANDONED) * (which == Word.COMPLETED) for which in Word))


def unseal(number: int, word: int) -> tuple[int, How] | None:
    """Return value and `How` of a sealed word; None for a word that is empty, damaged or of another record."""
    content = word >> 12
    if (content + number) % CHECK_MODULUS != word & 0xFFF:
        return None
    how = _HOW.get(content & 0xF)
    return None if how is None else (content >> 4, how)


def seal_live(word: LiveWord, value: int) -> int:
    """Pack a live word: the low 52 bits of a value, and a checksum. A sealed word is never 0, unlike an empty word."""
    content = value & LIVE_VALUE_MASK
    return (content << 12) | ((content + word) % CHECK_MODULUS)


def unseal_live(word: LiveWord, content: int) -> int | None:
    """Return the value of a live word; None if it is damaged."""
    value = content >> 12
    return value if (value + word) % CHECK_MODULUS == content & 0xFFF else None
