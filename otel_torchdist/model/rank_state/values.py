"""Checks of the values in one rank's tensors, for comparison between ranks. Frozen data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.names import CallSiteName


@dataclass(frozen=True, slots=True)
class ParameterRange:
    """A range of parameters that contains the affected one.

    Attributes:
        first: Name of the first candidate.
        last: Name of the last candidate; equal to `first` if there is only one.
        candidates: Number of candidates.
        count: Number of parameters in total.
    """

    first: str
    last: str
    candidates: int
    count: int

    @property
    def text(self) -> str:
        """The only candidate, or the range of candidates."""
        return self.first if self.candidates == 1 else f"{self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class NonFiniteInput:
    """An operation with an input that is infinite or not a number.

    Attributes:
        operation: Name of the operation.
        step: The rank's step.
        at_ns: When the operation was entered.
        is_nan: Whether an input is NaN; else an input is infinite.
        onset: The step at which an uninterrupted series of non-finite inputs began; see `CALM_STEPS`.
        label: The label; see `OperationView`.
        parameters: The message's parameters that may hold the first bad value; None if unknown.
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
    """The parameters that a checksum covers.

    Attributes:
        count: Number of parameters.
        sums: Checksums that locate the differing parameters; see `tape.records.numerics`.
        names: Known names, by position. Not sent to other agents.
    """

    count: int
    sums: tuple[int, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnknownInput:
    """An operation whose inputs have not all been checked for finiteness.

    Attributes:
        step: The rank's step.
        is_pending: Whether a device may still report it.
    """

    operation_id: OperationId
    step: int
    is_pending: bool


@dataclass(frozen=True, slots=True)
class OutputChecksum:
    """The checksum of outputs or parameters that must be equal on all members.

    Attributes:
        operation: Name of the operation.
        step: The rank's step.
        checksum: Checksum of the bits.
        parameters: The parameters that the checksum covers; None if it covers outputs.
        label: The label; see `OperationView`.
    """

    operation_id: OperationId
    operation: str
    step: int
    checksum: int
    parameters: ComparedParameters | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class RankValues:
    """The checked values of a rank.

    Attributes:
        are_all_checked: Whether all inputs are checked, so that an operation without an entry has finite inputs.
        non_finite: The oldest operations with non-finite inputs since inputs were last finite.
        outputs: The newest checksums of outputs, oldest first.
        skipped: The newest steps that a gradient scaler skipped.
        unknown: The newest operations whose inputs are unchecked or pending.
        unknown_until: The newest step with more unchecked operations than `unknown` holds, or with lost records; -1 for
            none.
    """

    are_all_checked: bool = False
    non_finite: tuple[NonFiniteInput, ...] = ()
    outputs: tuple[OutputChecksum, ...] = ()
    skipped: tuple[int, ...] = ()
    unknown: tuple[UnknownInput, ...] = ()
    unknown_until: int = -1

    def are_known_in(self, step: int) -> bool:
        """Return whether every input of this step and the previous one has been checked for finiteness."""
        first = max(step - 1, 0)
        return self.are_all_checked and self.unknown_until < first and all(call.step < first for call in self.unknown)

    def awaits(self, step: int) -> bool:
        """Return whether a device may still report inputs of this step or an earlier one."""
        return any(call.is_pending and call.step <= step for call in self.unknown)


NO_VALUES: Final = RankValues()
