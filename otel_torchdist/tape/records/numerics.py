"""What is recorded of the values in an operation's tensors: a record of its own, just before that of the operation.

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
show which of them differ: see `parameters`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.records.bounds import clipped
from otel_torchdist.tape.records.number_formats import headroom
from otel_torchdist.tape.records.parameters import WORDS, Parameters

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


class NumericsFlag(enum.IntFlag):
    """Facts about such a record."""

    SAMPLED = 1
    """All members take the statistics of this operation, for they choose by its sequence."""
    NON_FINITE = 2
    """An input is infinite or not a number."""
    COMPARABLE = 4
    """The outputs must be equal on all members."""
    PARAMETERS = 8
    """It belongs to no operation: its last word is the checksum of parameters that must be equal on all members."""
    PENDING = 16
    """What the inputs are like is known later: a device finds it out."""
    UNSEEN = 32
    """Not all inputs that may be infinite or not a number were looked at; `Numerics.unseen` says why."""


_ALL_FLAGS: Final = 63


class Unseen(enum.IntEnum):
    """Why tensors were not looked at."""

    TYPE = 1
    """A type without statistics that may hold such values: float8, quantised, complex with lazy conjugation, or a
    subclass of Tensor."""
    LAYOUT = 2
    """Sparse, or on a device and not dense."""
    DEVICE = 3
    """On a device that is none of CUDA's, or of which nothing is known any more."""
    GRAPH = 4
    """Issued while a graph was captured."""
    FULL = 5
    """More results were on their way from the device than there is room for."""
    FAILED = 6
    """Looking at them failed, for which there is an error in the log."""

    @property
    def label(self) -> str:
        """Its name in metrics."""
        return self.name.lower()


_NON_FINITE: Final = int(NumericsFlag.NON_FINITE)
_PENDING: Final = int(NumericsFlag.PENDING)
_UNSEEN_FLAG: Final = int(NumericsFlag.UNSEEN)
_UNSEEN: Final = {int(one): one for one in Unseen}


_PARAMETERS: Final = int(NumericsFlag.PARAMETERS)


class Numerics(msgspec.Struct, frozen=True, gc=False):
    """The values in one operation's tensors, of one rank.

    Attributes:
        number: Number of its own record.
        taken_ns: When the statistics were taken.
        step: The rank's step then.
        sequence: The operation's sequence.
        group: Name id of its group.
        peer: Global rank of the peer or root; -1 when there is none.
        tag: Its tag.
        thread: Native id of the calling thread.
        elements: How many floating numbers the inputs have.
        flags: See `NumericsFlag`.
        smallest: The smallest input; NaN if one is not a number; None if it is not known, as for all below.
        largest: The largest.
        mean: Their mean.
        norm: Their L2 norm.
        zero_share: Share of zeros, in a sample.
        subnormal_share: Share of subnormal numbers, in a sample.
        input_checksum: Checksum of the inputs' bits.
        output_checksum: Checksum of the outputs' bits.
        parameters: What else is known of parameters; None if it is the record of an operation.
        number_format: The type of the inputs; see `NumberFormat`.
        saturated_share: Share of numbers that are the largest of their type, in a sample; only of float8.
        unseen: Why inputs were not looked at; None if all were.
        unseen_output: Why the outputs have no checksum; None if they have one, or not yet.
        culprits: Name id of the parameter that has brought a value that is not finite, or of the first and the last
            that may have; 0 if they are not known.
        held: How many parameters the message holds; 0 if that is not known.
    """

    number: int
    taken_ns: int
    step: int
    sequence: int
    group: int
    peer: int
    tag: int
    thread: int
    elements: int
    flags: NumericsFlag
    smallest: float | None = None
    largest: float | None = None
    mean: float | None = None
    norm: float | None = None
    zero_share: float | None = None
    subnormal_share: float | None = None
    input_checksum: int | None = None
    output_checksum: int | None = None
    parameters: Parameters | None = None
    number_format: int = 0
    saturated_share: float | None = None
    unseen: Unseen | None = None
    unseen_output: Unseen | None = None
    culprits: int = 0
    held: int = 0

    @property
    def is_pending(self) -> bool:
        """Whether a device has not reported yet what the inputs are like."""
        return bool(int(self.flags) & _PENDING) and (self.smallest is None or self.largest is None)

    @property
    def is_finite(self) -> bool | None:
        """Whether all inputs are finite; None if that is not known, or not yet."""
        flags = int(self.flags)
        if flags & _NON_FINITE:
            return False
        if flags & _PENDING:
            if self.smallest is None or self.largest is None:
                return None
            if not (math.isfinite(self.smallest) and math.isfinite(self.largest)):
                return False
        return None if flags & _UNSEEN_FLAG else True

    @property
    def absmax(self) -> float | None:
        """The largest magnitude; NaN if an input is not a number."""
        if self.smallest is None or self.largest is None:
            return None
        return math.nan if math.isnan(self.smallest) else max(abs(self.smallest), abs(self.largest))

    @property
    def headroom(self) -> float | None:
        """How often the largest magnitude could be doubled before it overflowed its type; None if it is not known."""
        absmax = self.absmax
        return None if absmax is None else headroom(self.number_format, absmax)


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
    """The same with what its record's words hold now."""
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
