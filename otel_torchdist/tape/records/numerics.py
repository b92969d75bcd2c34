"""Numerics of an operation's tensors: a separate record, directly before the operation's record.

Thread, group and sequence in its payload identify the operation. Its six words are stored as values become known: the
words of the inputs before the operation is entered, the checksum of the outputs after it has ended.

    0  smallest input as float32, and in the upper 16 bits the share of zeros
    1  largest input as float32, and the share of subnormal numbers
    2  mean of the inputs as float32, and the share of saturated numbers
    3  L2 norm of the inputs as float32
    4  checksum of the inputs
    5  checksum of the outputs; or, with `How.UNTRACKED`, the reason why it is missing (`Unseen`)

For inputs on a device, their words are stored once the device has computed them (`NumericsFlag.PENDING`). The first two
words are stored last.

A record of parameters shared by replicas belongs to no operation. Its last word is the checksum of all parameters. The
other words hold the sums described below, which identify differing parameters.
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

# Checksums of many parameters in one record. Next to the sum of all checksums, there is one sum for each bit of a
# parameter's index, over the parameters with this bit set. If one parameter differs, exactly the sums of its index's
# bits differ, all by the same amount. If several differ, the sums show the common bits of their indices. So five words
# suffice for a million parameters, and ranks need not exchange more.

WORDS: Final = 5
"""Words of a record with sums."""
_WORD_BITS: Final = 48
_SUM_BITS: Final = (48, 24, 16, 12)
"""Possible widths of a sum in bits. The widest that fits is used: 12 bits each for a million parameters."""
MAX_PARAMETERS: Final = 1 << WORDS * _WORD_BITS // _SUM_BITS[-1]
_MASK: Final = (1 << 64) - 1
SUM_MASK: Final = (1 << _WORD_BITS) - 1
"""The bits of the sum of all checksums."""
FACTORS: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Constants of SplitMix64, for `mix_checksum`."""


def mix_checksum(checksum: int, salt: int) -> int:
    """Spread a parameter's checksum over 64 bits (SplitMix64), so that sums of checksums stay distinguishable.

    Args:
        checksum: The checksum.
        salt: A property of the parameter. A swap of two parameters with equal salts is not detected.
    """
    value = (checksum + (salt + 1) * FACTORS[0]) & _MASK
    value = ((value ^ (value >> 30)) * FACTORS[1]) & _MASK
    value = ((value ^ (value >> 27)) * FACTORS[2]) & _MASK
    return value ^ (value >> 31)


def sum_checksums(checksums: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Sum mixed checksums of parameters, at most `MAX_PARAMETERS`.

    Returns:
        The sum of all checksums, in 48 bits, and the words with the sums by bit of the index.
    """
    bits = index_bits(len(checksums))
    sums = [0] * bits
    for index, checksum in enumerate(checksums):
        for bit in range(index.bit_length()):
            if index >> bit & 1:
                sums[bit] += checksum
    words = [0] * WORDS
    for bit, total in enumerate(sums):
        word, shift, modulus = locate_sum(bit, bits)
        words[word] |= total % modulus << shift
    return sum(checksums) & SUM_MASK, tuple(words)


def differing_indices(
    first_sums: tuple[int, Sequence[int]], second_sums: tuple[int, Sequence[int]], count: int
) -> DifferingRange | None:
    """Return the indices of the parameters that differ between two ranks.

    Args:
        first_sums: Result of `sum_checksums` on one rank.
        second_sums: Result of `sum_checksums` on the other rank.
        count: Number of parameters of each.

    Returns:
        The indices; None if unknown.
    """
    if not 0 < count <= MAX_PARAMETERS or len(first_sums[1]) != WORDS or len(second_sums[1]) != WORDS:
        return None
    bits = index_bits(count)
    first = last = 0
    for bit in range(bits):
        word, shift, modulus = locate_sum(bit, bits)
        difference = (first_sums[0] - second_sums[0]) % modulus
        if not difference:  # the checksums differ, but the low bits of their sums are equal by chance
            return None
        bit_difference = ((first_sums[1][word] >> shift) - (second_sums[1][word] >> shift)) % modulus
        last |= bool(bit_difference) << bit
        first |= (bit_difference == difference) << bit
    return DifferingRange(min(first, count - 1), min(last, count - 1), first == last < count)


def index_bits(count: int) -> int:
    """Return the number of bits in the indices of `count` parameters."""
    return max(count - 1, 0).bit_length()


def locate_sum(bit: int, bits: int) -> tuple[int, int, int]:
    """Return the word with the sum of one of `bits` index bits, the sum's shift in the word, and its modulus."""
    width = next(width for width in _SUM_BITS if bits <= WORDS * (_WORD_BITS // width))
    word, nth = divmod(bit, _WORD_BITS // width)
    return word, nth * width, 1 << width


SHARE_STEPS: Final = 0xFFFE
"""A share from 0 to 1 is stored as 16 bits: the nearest of these steps, or `_NO_SHARE`."""
_NO_SHARE: Final = 0xFFFF
CHECKSUM_BITS: Final = 48
_LOW_48: Final = (1 << CHECKSUM_BITS) - 1


class NumericsWord(enum.IntEnum):
    """The words of a numerics record."""

    SMALLEST = 0
    LARGEST = 1
    MEAN = 2
    NORM = 3
    INPUT_CHECKSUM = 4
    OUTPUT_CHECKSUM = 5


_ALL_FLAGS: Final = 63


_UNSEEN: Final = {int(unseen): unseen for unseen in Unseen}


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
    """Pack the payload of a record. The arguments are as in `Numerics`, with 0 for None."""
    tail = layout.PAYLOAD_TAIL.pack(
        elements, group, number_format, held, culprits, peer, tag, thread, RecordKind.NUMERICS, flags, 0, unseen
    )
    return layout.PAYLOAD_HEAD.pack(taken_ns, step, sequence) + tail


def pack_parameters(
    taken_ns: int, step: int, sequence: int, group: int, thread: int, elements: int, parameters: Parameters
) -> bytes:
    """Pack the payload of a record of parameters. The arguments are as in `Numerics`."""
    tail = layout.PAYLOAD_TAIL.pack(
        elements, group, parameters.left_out, 0, parameters.names, -1, parameters.count, thread,
        RecordKind.NUMERICS, _PARAMETERS, 0, 0,
    )  # fmt: skip
    return layout.PAYLOAD_HEAD.pack(taken_ns, step, sequence) + tail


def float_word(value: float, share: float | None = None) -> int:
    """Pack a value, clipped to float32 if finite, and a share between 0 and 1 into a word's value."""
    steps = _NO_SHARE if share is None else round(max(0.0, min(share, 1.0)) * SHARE_STEPS)
    return layout.float_bits(value) | steps << 32


def checksum_word(checksum: int) -> int:
    """Fold a 64-bit checksum into the 48 bits of a word's value."""
    return (checksum ^ (checksum >> CHECKSUM_BITS)) & _LOW_48


def numerics_of(number: int, fields: Sequence[int], words: Sequence[int]) -> Numerics:
    """Build the numerics of a record.

    Args:
        number: Number of the record.
        fields: The fields of its payload.
        words: Its words; values of empty or damaged words are unknown. An empty sequence if all are unknown.
    """
    taken_ns, step, sequence, elements, group, number_format, held, names, peer, tag, thread, _, flags, _, unseen = (
        fields
    )
    parameters: Parameters | None = None
    if flags & _PARAMETERS:  # records of parameters use the same fields for other values
        parameters = Parameters(count=tag, names=names, left_out=number_format, sums=())
        tag = number_format = held = names = 0
    numerics = Numerics(
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
    return with_words(numerics, words) if words else numerics


def with_words(numerics: Numerics, words: Sequence[int]) -> Numerics:
    """Return the numerics updated from the current words of their record."""
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
