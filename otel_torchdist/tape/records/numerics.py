"""The values in an operation's tensors: a record of its own, directly before the operation's record.

Its payload says which operation it belongs to, by thread, group and sequence. Its six words are filled in as values
become known, those of the inputs before the operation is entered, the checksum of the outputs after it has ended:

    0  smallest input as float32, and in the upper 16 bits the share of zeros
    1  largest input as float32, and the share of subnormal numbers
    2  mean of the inputs as float32, and the share of saturated numbers
    3  their L2 norm as float32
    4  checksum of the inputs
    5  checksum of the outputs; or, with `How.UNTRACKED`, an `Unseen` that says why there is none

On a device the words of the inputs come late too (`NumericsFlag.PENDING`), the first two last of them.

A record of parameters that replicas share belongs to no operation. Its last word is their checksum, and those before it
show which of them differ: see below.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.model.numerics import DifferingRange, Numerics, NumericsFlag, Parameters, Unseen
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.layout import clipped

# Checksums of many parameters in one record. Beside the sum of all there is, for each bit of a parameter's place, the
# sum over those in whose place it is set. If one parameter differs, exactly the sums of its place's bits differ, and
# all by the same amount. If several do, what is known of their places is what they have in common. So five words are
# enough for a million parameters: no rank has to be asked for more.

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


def differing_places(
    here: tuple[int, Sequence[int]], there: tuple[int, Sequence[int]], count: int
) -> DifferingRange | None:
    """Return the places of the parameters that differ between two ranks.

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
    return DifferingRange(min(first, count - 1), min(last, count - 1), first == last < count)


def bits_of_places(count: int) -> int:
    """Return the number of bits of the places of `count` parameters."""
    return max(count - 1, 0).bit_length()


def position_of(bit: int, bits: int) -> tuple[int, int, int]:
    """Return the word with the sum by one of some bits of places, how far that is shifted there, and its modulus."""
    width = next(width for width in _SUM_BITS if bits <= WORDS * (_WORD_BITS // width))
    word, nth = divmod(bit, _WORD_BITS // width)
    return word, nth * width, 1 << width


SHARE_STEPS: Final = 0xFFFE
_NO_SHARE: Final = 0xFFFF
CHECKSUM_BITS: Final = 48
_LOW_48: Final = (1 << CHECKSUM_BITS) - 1


class NumericsWord(enum.IntEnum):
    """The words of such a record."""

    SMALLEST = 0
    LARGEST = 1
    MEAN = 2
    NORM = 3
    INPUT_CHECKSUM = 4
    OUTPUT_CHECKSUM = 5


_ALL_FLAGS: Final = 63


_UNSEEN: Final = {int(one): one for one in Unseen}


_PARAMETERS: Final = int(NumericsFlag.PARAMETERS)


def pack_numerics(
    taken_ns: int,
    step: int,
    sequence: int,
    group: int,
    peer: int,
    tag: int,
    thread: int,
    elements: int,
    flags: int,
    number_format: int = 0,
    unseen: int = 0,
    culprits: int = 0,
    held: int = 0,
) -> bytes:
    """Pack the payload of a record; arguments as in `Numerics`, and 0 for None."""
    tail = layout.PAYLOAD_TAIL.pack(
        elements, group, number_format, held, culprits, peer, tag, thread, RecordKind.NUMERICS, flags, 0, unseen
    )
    return layout.PAYLOAD_HEAD.pack(taken_ns, step, sequence) + tail


def pack_parameters(
    taken_ns: int, step: int, sequence: int, group: int, thread: int, elements: int, parameters: Parameters
) -> bytes:
    """Pack the payload of a record of parameters; arguments as in `Numerics`."""
    tail = layout.PAYLOAD_TAIL.pack(
        elements, group, parameters.left_out, 0, parameters.names, -1, parameters.count, thread,
        RecordKind.NUMERICS, _PARAMETERS, 0, 0,
    )  # fmt: skip
    return layout.PAYLOAD_HEAD.pack(taken_ns, step, sequence) + tail


def float_word(value: float, share: float | None = None) -> int:
    """Return what a word holds: a float32, to whose range finite values are clipped, and a share between 0 and 1."""
    steps = _NO_SHARE if share is None else round(max(0.0, min(share, 1.0)) * SHARE_STEPS)
    return layout.float_bits(value) | steps << 32


def checksum_word(checksum: int) -> int:
    """Fold a checksum of 64 bits into what a word holds."""
    return (checksum ^ (checksum >> CHECKSUM_BITS)) & _LOW_48


def numerics_of(number: int, fields: Sequence[int], words: Sequence[int]) -> Numerics:
    """Build what a record holds.

    Args:
        number: Number of the record.
        fields: The fields of its payload.
        words: Its words; one that is empty or damaged is not known. Empty if none of them is.
    """
    taken_ns, step, sequence, elements, group, number_format, held, names, peer, tag, thread, _, flags, _, unseen = (
        fields
    )
    parameters: Parameters | None = None
    if flags & _PARAMETERS:  # they have other facts in the same fields
        parameters = Parameters(count=tag, names=names, left_out=number_format, sums=())
        tag = number_format = held = names = 0
    known = Numerics(
        number=number,
        taken_ns=taken_ns,
        step=step,
        sequence=sequence,
        group=group,
        peer=peer,
        tag=tag,
        thread=thread,
        elements=clipped(elements),
        flags=NumericsFlag(flags & _ALL_FLAGS),
        unseen=_UNSEEN.get(unseen),
        number_format=number_format,
        parameters=parameters,
        culprits=names,
        held=held,
    )
    return with_words(known, words) if words else known


def with_words(numerics: Numerics, words: Sequence[int]) -> Numerics:
    """Return the values updated from the current words of their record."""
    values = [seals.unseal(numerics.number, word) if word else None for word in words]
    parameters = numerics.parameters
    if parameters is not None:
        sums = tuple([word[0] for word in values[:WORDS] if word is not None])
        return msgspec.structs.replace(
            numerics,
            output_checksum=_value(values[NumericsWord.OUTPUT_CHECKSUM]),
            parameters=Parameters(parameters.count, parameters.names, parameters.left_out, sums),
        )
    smallest, zero_share = _float_and_share(values[NumericsWord.SMALLEST])
    largest, subnormal_share = _float_and_share(values[NumericsWord.LARGEST])
    mean, saturated_share = _float_and_share(values[NumericsWord.MEAN])
    output = values[NumericsWord.OUTPUT_CHECKSUM]
    is_unseen = output is not None and output[1] is How.UNTRACKED
    return msgspec.structs.replace(
        numerics,
        smallest=smallest,
        largest=largest,
        mean=mean,
        norm=_float_and_share(values[NumericsWord.NORM])[0],
        zero_share=zero_share,
        subnormal_share=subnormal_share,
        input_checksum=_value(values[NumericsWord.INPUT_CHECKSUM]),
        output_checksum=None if is_unseen else _value(output),
        unseen_output=_UNSEEN.get(output[0]) if is_unseen and output is not None else None,
        saturated_share=saturated_share,
    )


def _value(word: tuple[int, How] | None) -> int | None:
    return None if word is None else word[0]


def _float_and_share(word: tuple[int, How] | None) -> tuple[float | None, float | None]:
    if word is None:
        return None, None
    content = word[0]
    steps = content >> 32 & 0xFFFF
    return layout.float_of(content & 0xFFFF_FFFF), None if steps == _NO_SHARE else steps / SHARE_STEPS
