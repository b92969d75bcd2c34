"""The values in one operation's tensors, and in a model's parameters, as one rank has seen them."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

# --- formats of numbers -----------------------------------------------------------------------------------------------
# The types of floating numbers whose range is narrow enough to matter, and the largest number of each.


class NumberFormat(enum.IntEnum):
    """A type of number, as it is recorded; its name in lower case is torch's."""

    UNKNOWN = 0
    """Another type, or several."""
    FLOAT16 = 1
    BFLOAT16 = 2
    FLOAT32 = 3
    FLOAT8_E4M3FN = 4
    FLOAT8_E5M2 = 5
    FLOAT8_E4M3FNUZ = 6
    FLOAT8_E5M2FNUZ = 7


LARGEST: Final[Mapping[int, float]] = {
    NumberFormat.FLOAT16: 65_504.0,
    NumberFormat.BFLOAT16: 3.3895313892515355e38,
    NumberFormat.FLOAT32: 3.4028234663852886e38,
    NumberFormat.FLOAT8_E4M3FN: 448.0,
    NumberFormat.FLOAT8_E5M2: 57_344.0,
    NumberFormat.FLOAT8_E4M3FNUZ: 240.0,
    NumberFormat.FLOAT8_E5M2FNUZ: 57_344.0,
}
"""The largest finite number of each."""


def headroom(number_format: int, magnitude: float) -> float | None:
    """How often a magnitude could be doubled before it overflowed its type; None if that is not known."""
    largest = LARGEST.get(number_format)
    if largest is None or not 0.0 < magnitude < math.inf:
        return None
    return math.log2(largest / magnitude)


class Parameters(msgspec.Struct, frozen=True, gc=False):
    """What a record says about parameters besides their checksum.

    Attributes:
        count: How many there are.
        names: Name id of their names; 0 if they are not known.
        left_out: Models and optimizers of this rank whose parameters are not compared, because there are too many.
        sums: Sums by the bits of places, as words.
    """

    count: int
    names: int
    left_out: int
    sums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Where parameters differ.

    Attributes:
        first: The first place at which one may.
        last: The last such place.
        are_exact: Whether it is known that only the parameter at `first`, which is `last`, differs.
    """

    first: int
    last: int
    are_exact: bool

    def joined(self, other: Places) -> Places:
        """These and others."""
        if self == other:
            return self
        return Places(min(self.first, other.first), max(self.last, other.last), are_exact=False)


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
