"""Statistics of the values in one operation's tensors, and in a model's parameters, on one rank."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

# --- formats of numbers -----------------------------------------------------------------------------------------------
# Floating-point types that training may overflow, with their largest finite numbers.


class NumberFormat(enum.IntEnum):
    """A floating-point type. Its name in lower case is torch's."""

    UNKNOWN = 0
    """Another type, or several types."""
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
"""The largest finite number of each type."""


def headroom(number_format: int, magnitude: float) -> float | None:
    """Return the number of doublings before a magnitude overflows its type, or None if unknown."""
    largest = LARGEST.get(number_format)
    if largest is None or not 0.0 < magnitude < math.inf:
        return None
    return math.log2(largest / magnitude)


class Parameters(msgspec.Struct, frozen=True, gc=False):
    """The data of a parameter record besides the checksum.

    Attributes:
        count: Number of parameters.
        names: Name id of the parameters' names; 0 if unknown.
        left_out: Number of models and optimizers of this rank with too many parameters to compare.
        sums: For each bit of positions, the checksum of the parameters whose position has that bit set. Packed into
            words; see `tape.records.numerics`.
    """

    count: int
    names: int
    left_out: int
    sums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DifferingRange:
    """The range of parameters that may differ between replicas.

    Attributes:
        first: The first position that may differ.
        last: The last position that may differ.
        is_single: Whether exactly one parameter differs, at `first`, which equals `last`.
    """

    first: int
    last: int
    is_single: bool

    def joined(self, other: DifferingRange) -> DifferingRange:
        """Return the smallest range that covers both."""
        if self == other:
            return self
        return DifferingRange(min(self.first, other.first), max(self.last, other.last), is_single=False)


class NumericsFlag(enum.IntFlag):
    """Facts about a numerics record."""

    SAMPLED = 1
    """All members take statistics of this operation: they choose operations by sequence."""
    NON_FINITE = 2
    """An input is infinite or not a number."""
    COMPARABLE = 4
    """The outputs must be equal on all members."""
    PARAMETERS = 8
    """The record belongs to no operation. Its last word is a checksum of parameters, which must not differ by rank."""
    PENDING = 16
    """A device computes the statistics of the inputs, and the results arrive later."""
    UNSEEN = 32
    """Some inputs that may be infinite or not a number were not checked. `Numerics.unseen` gives the reason."""


class Unseen(enum.IntEnum):
    """The reasons for not checking tensors."""

    TYPE = 1
    """A type without statistics that may hold infinities or NaN: float8, quantized, complex with lazy conjugation, or a
    subclass of Tensor."""
    LAYOUT = 2
    """A sparse tensor, or a non-dense tensor on a device."""
    DEVICE = 3
    """A device other than CUDA, or a device whose state is lost."""
    GRAPH = 4
    """Issued during the capture of a CUDA graph."""
    FULL = 5
    """The buffer for results from the device was full."""
    FAILED = 6
    """The check failed; the log has an error."""

    @property
    def label(self) -> str:
        """The label value in metrics."""
        return self.name.lower()


_NON_FINITE: Final = int(NumericsFlag.NON_FINITE)
_PENDING: Final = int(NumericsFlag.PENDING)
_UNSEEN_FLAG: Final = int(NumericsFlag.UNSEEN)


class Numerics(msgspec.Struct, frozen=True, gc=False):
    """Statistics of the values in one operation's tensors on one rank.

    Attributes:
        number: Number of this record, not the operation's.
        taken_ns: When the statistics were taken.
        step: The rank's step then.
        sequence: The operation's sequence.
        group: Name id of its group.
        peer: Global rank of the peer or root; -1 if there is none.
        tag: The operation's tag.
        thread: Native id of the calling thread.
        elements: Number of floating-point elements in the inputs.
        flags: See `NumericsFlag`.
        smallest: The smallest input; NaN if an input is NaN. Here and in the fields below, None means unknown.
        largest: The largest input.
        mean: The mean of the inputs.
        norm: The L2 norm of the inputs.
        zero_share: Share of zeros, in a sample.
        subnormal_share: Share of subnormal numbers, in a sample.
        input_checksum: Checksum of the inputs' bits.
        output_checksum: Checksum of the outputs' bits.
        parameters: Data of a parameter record; None for the record of an operation.
        number_format: The type of the inputs; see `NumberFormat`.
        saturated_share: Share of elements equal to the largest number of their type, in a sample; float8 only.
        unseen: Why inputs were not checked; None if all were.
        unseen_output: Why the outputs have no checksum; None if they have one, or will have one.
        culprits: Name id of the parameter with a non-finite value, or of the first and last candidates; 0 if unknown.
        held: Number of parameters that the operation's tensors hold; 0 if unknown.
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
        """Whether the device's statistics of the inputs have not arrived yet."""
        return bool(int(self.flags) & _PENDING) and (self.smallest is None or self.largest is None)

    @property
    def is_finite(self) -> bool | None:
        """Whether all inputs are finite; None if unknown or still pending."""
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
        """The largest magnitude of the inputs; NaN if an input is NaN."""
        if self.smallest is None or self.largest is None:
            return None
        return math.nan if math.isnan(self.smallest) else max(abs(self.smallest), abs(self.largest))

    @property
    def headroom(self) -> float | None:
        """Number of doublings before the largest magnitude overflows its type; None if unknown."""
        absmax = self.absmax
        return None if absmax is None else headroom(self.number_format, absmax)
