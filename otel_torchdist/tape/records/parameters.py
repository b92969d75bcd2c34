"""Checksums of many parameters in one record, from which two ranks' records show which parameter differs.

Beside the sum of all checksums there is, for each bit of a parameter's place, the sum over those in whose place it is
set. If one parameter differs, exactly the sums of its place's bits differ, and all by the same amount. If several do,
what is known of their places is what they have in common. So five words are enough for a million parameters: no rank
has to be asked for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_torchdist.model.numerics import Places

WORDS: Final = 5
"""Words of a record that hold the sums."""
_WORD_BITS: Final = 48
_SUM_BITS: Final = (48, 24, 16, 12)
"""How many bits sums have: as many as fit. Those of a million places have 12 each."""
MAX_PARAMETERS: Final = 1 << WORDS * _WORD_BITS // _SUM_BITS[-1]
_MASK: Final = (1 << 64) - 1
SUM_MASK: Final = (1 << _WORD_BITS) - 1
"""The bits of the sum of all."""
FACTORS: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Those of `mixed`."""


def mixed(checksum: int, salt: int) -> int:
    """Spread a parameter's checksum over 64 bits, so that sums of several keep what distinguishes them (SplitMix64).

    Args:
        checksum: The checksum.
        salt: What must be the same if two parameters are to be exchanged unseen.
    """
    value = (checksum + (salt + 1) * FACTORS[0]) & _MASK
    value = ((value ^ (value >> 30)) * FACTORS[1]) & _MASK
    value = ((value ^ (value >> 27)) * FACTORS[2]) & _MASK
    return value ^ (value >> 31)


def summed(checksums: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Sum mixed checksums of parameters, at most `MAX_PARAMETERS`.

    Returns:
        The sum of all, of 48 bits, and the words with the sums by the bits of their places.
    """
    places = bits_of_places(len(checksums))
    sums = [0] * places
    for place, checksum in enumerate(checksums):
        for bit in range(place.bit_length()):
            if place >> bit & 1:
                sums[bit] += checksum
    words = [0] * WORDS
    for bit, one in enumerate(sums):
        word, shift, modulus = position_of(bit, places)
        words[word] |= one % modulus << shift
    return sum(checksums) & SUM_MASK, tuple(words)


def differing_places(here: tuple[int, Sequence[int]], there: tuple[int, Sequence[int]], count: int) -> Places | None:
    """Where the parameters of two ranks differ.

    Args:
        here: What `summed` has returned on one rank.
        there: The same of another.
        count: How many parameters each has.

    Returns:
        None if that is not known.
    """
    if not 0 < count <= MAX_PARAMETERS or len(here[1]) != WORDS or len(there[1]) != WORDS:
        return None
    bits = bits_of_places(count)
    first = last = 0
    for bit in range(bits):
        word, shift, modulus = position_of(bit, bits)
        difference = (here[0] - there[0]) % modulus
        if not difference:  # in the low bits, by chance
            return None
        of_bit = ((here[1][word] >> shift) - (there[1][word] >> shift)) % modulus
        last |= bool(of_bit) << bit
        first |= (of_bit == difference) << bit
    return Places(min(first, count - 1), min(last, count - 1), first == last < count)


def bits_of_places(count: int) -> int:
    """How many bits the places of so many parameters have."""
    return max(count - 1, 0).bit_length()


def position_of(bit: int, bits: int) -> tuple[int, int, int]:
    """The word with the sum by one of some bits of places, how far that is shifted there, and its modulus."""
    width = next(width for width in _SUM_BITS if bits <= WORDS * (_WORD_BITS // width))
    word, nth = divmod(bit, _WORD_BITS // width)
    return word, nth * width, 1 << width
