"""What the values in one rank's tensors were like, by which ranks are compared. Frozen data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.names import CallSiteName


@dataclass(frozen=True, slots=True)
class ParameterRange:
    """Which of some parameters are meant.

    Attributes:
        first: Name of the first one that may be.
        last: Name of the last one that may be; the same as `first` if it is known that it is only that one.
        candidates: How many there are from the first to the last.
        count: How many there are in all.
    """

    first: str
    last: str
    candidates: int
    count: int

    @property
    def text(self) -> str:
        """The only one, or the range that they are in."""
        return self.first if self.candidates == 1 else f"{self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class NonFiniteInput:
    """An operation with an input that is infinite or not a number.

    Attributes:
        operation_id: Its id, the same on all members.
        operation: Its name.
        step: The rank's step.
        at_ns: When it was entered.
        is_nan: Whether an input is not a number; else one is infinite.
        call_site: Where it was called.
        onset: The step with the first one of a series without a calm; see `CALM_STEPS`.
        label: What it is for; see `OperationView`.
        parameters: Which of the message's parameters the first bad value belongs to; None if that is not known.
    """

    operation_id: OperationId
    operation: str
    step: int
    at_ns: int
    is_nan: bool
    call_site: CallSiteName | None
    onset: int
    label: str = ""
    parameters: ParameterRange | None = None


@dataclass(frozen=True, slots=True)
class ComparedParameters:
    """Which parameters a checksum is of.

    Attributes:
        count: How many.
        sums: Shows which of them differ; see `tape.records.numerics`.
        names: Their names, by their place, as far as they are known; not sent to other agents.
    """

    count: int
    sums: tuple[int, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnknownInput:
    """An operation of which it is not known whether all inputs are finite.

    Attributes:
        operation_id: Its id.
        step: The rank's step.
        is_pending: Whether a device may still report it.
    """

    operation_id: OperationId
    step: int
    is_pending: bool


@dataclass(frozen=True, slots=True)
class OutputChecksum:
    """The outputs of an operation that must be equal on all members.

    Attributes:
        operation_id: Its id.
        operation: Its name.
        step: The rank's step.
        checksum: Checksum of their bits.
        parameters: Which parameters it is of; None if it is of outputs.
        label: What it is for; see `OperationView`.
    """

    operation_id: OperationId
    operation: str
    step: int
    checksum: int
    parameters: ComparedParameters | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class RankValues:
    """What is known of a rank's values.

    Attributes:
        are_all_checked: Whether all inputs are checked, so that those of an operation without an entry are finite.
        non_finite: Operations with inputs that are not finite, the oldest ones since the last that were.
        outputs: The newest checksums of outputs, oldest first.
        skipped: The newest steps that a gradient scaler has left out.
        unknown: The newest operations of which it is not known, or not yet.
        unknown_until: The newest step with further such operations, or with records that were lost; -1 for none.
    """

    are_all_checked: bool = False
    non_finite: tuple[NonFiniteInput, ...] = ()
    outputs: tuple[OutputChecksum, ...] = ()
    skipped: tuple[int, ...] = ()
    unknown: tuple[UnknownInput, ...] = ()
    unknown_until: int = -1

    def are_known_in(self, step: int) -> bool:
        """Whether it is known of all inputs, in a step and in the one before, whether they are finite."""
        least = max(step - 1, 0)
        return self.are_all_checked and self.unknown_until < least and all(one.step < least for one in self.unknown)

    def awaits(self, step: int) -> bool:
        """Whether a device may still report what came up to a step."""
        return any(one.is_pending and one.step <= step for one in self.unknown)


NO_VALUES: Final = RankValues()
