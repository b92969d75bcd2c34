"""Statistics of one rank's tensor values that are compared with other ranks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from otel_torchdist.judge.world.resolved import ResolvedNames
from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.numerics import Numerics, NumericsFlag
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.model.rank_state.values import (
    ComparedParameters,
    NonFiniteInput,
    OutputChecksum,
    ParameterRange,
    RankValues,
    UnknownInput,
)

MAX_NON_FINITE: Final = 32
"""Maximum number of recorded operations with non-finite inputs. The oldest are kept; later ones are consequences."""
MAX_OUTPUTS: Final = 512
MAX_SKIPPED: Final = 64
MAX_AWAITED: Final = 1_024
MAX_UNKNOWN: Final = 512
"""Maximum number of inputs with pending results; more than devices ever have in transfer to the host."""
PARAMETERS: Final = "parameters"
"""Name shown instead of an operation for a checksum of parameters."""


class _Awaited(NamedTuple):
    """An operation whose results have not all arrived."""

    operation_id: OperationId
    name: str
    step: int
    at_ns: int
    call_site: CallSiteName | None
    label: str


class ValueLog:
    """The values of one rank that its snapshot needs.

    Attributes:
        shown: The values as of the last poll.
    """

    def __init__(self, are_all_checked: bool, resolved: ResolvedNames) -> None:
        """Start without any values.

        Args:
            are_all_checked: See `RankValues`.
            resolved: Resolves the names of operations.
        """
        self._resolved = resolved
        self._are_all_checked = are_all_checked
        self._non_finite: list[NonFiniteInput] = []
        self._outputs: deque[OutputChecksum] = deque(maxlen=MAX_OUTPUTS)
        self._skipped: deque[int] = deque(maxlen=MAX_SKIPPED)
        self._awaited: dict[int, _Awaited] = {}
        self._unknown: dict[int, UnknownInput] = {}
        self._unknown_until = -1
        self._step = 0
        self.shown = RankValues(are_all_checked)

    def observe(
        self,
        entered: Iterable[Operation],
        numerics: Iterable[Numerics],
        steps: Iterable[StepMark],
        has_lost: bool = False,
    ) -> None:
        """Process the results of a poll.

        Args:
            entered: Operations entered.
            numerics: Results that have arrived.
            steps: Steps that ended.
            has_lost: Whether the poll lost records.
        """
        has_changed = has_lost and self._are_all_checked
        for operation in entered:
            self._step = operation.step
            if operation.numerics is not None:
                has_changed |= self._entered(operation, operation.numerics)
        if has_lost:
            self._unknown_until = self._step
        for result in numerics:
            has_changed |= self._process_result(result)
        for mark in steps:
            if mark.skipped:
                self._skipped.append(mark.step)
                has_changed = True
        if has_changed:
            self.shown = RankValues(
                self._are_all_checked,
                tuple(self._non_finite),
                tuple(self._outputs),
                tuple(self._skipped),
                tuple(self._unknown.values()),
                self._unknown_until,
            )

    def stop_checking(self) -> None:
        """Take no further operation without an entry for finite: the rank records less than everything."""
        if self._are_all_checked:
            self._are_all_checked = False
            self.shown = replace(self.shown, are_all_checked=False)

    def _process_result(self, numerics: Numerics) -> bool:
        """Process results for an operation or for parameters. Return whether `shown` changes."""
        awaited = self._awaited.get(numerics.number)
        has_changed = False
        if awaited is not None and not numerics.is_pending:
            unknown = self._unknown.get(numerics.number)
            if unknown is not None and unknown.is_pending:
                has_changed = self._process_input(awaited, numerics)
        compared = self._parameters(numerics) or (
            awaited and (awaited.operation_id, awaited.name, awaited.step, awaited.label)
        )
        if compared is not None and numerics.output_checksum is not None:
            self._awaited.pop(numerics.number, None)
            operation_id, name, step, label = compared
            parameters = self._compared(numerics)
            self._outputs.append(OutputChecksum(operation_id, name, step, numerics.output_checksum, parameters, label))
            has_changed = True
        return has_changed

    def _parameters(self, numerics: Numerics) -> tuple[OperationId, str, int, str] | None:
        """Return the identity under which a checksum of parameters is compared; None for checksums of operations."""
        group = self._resolved.group(numerics.group) if int(numerics.flags) & NumericsFlag.PARAMETERS else None
        if group is None:
            return None
        channel = Channel(RecordKind.NUMERICS, group.key)
        return OperationId(channel, numerics.sequence), PARAMETERS, numerics.step, ""

    def _compared(self, numerics: Numerics) -> ComparedParameters | None:
        compared = numerics.parameters
        return (
            None
            if compared is None
            else ComparedParameters(compared.count, compared.sums, self._resolved.parameters(compared.names))
        )

    def _entered(self, operation: Operation, numerics: Numerics) -> bool:
        view = self._resolved.operation(operation)
        awaited = _Awaited(
            view.operation_id, view.name, operation.step, operation.entered_ns, view.call_site, view.label
        )
        self._awaited[numerics.number] = awaited
        if len(self._awaited) > MAX_AWAITED:
            del self._awaited[next(iter(self._awaited))]
        return self._process_input(awaited, numerics)

    def _process_input(self, operation: _Awaited, numerics: Numerics) -> bool:
        """Process results for the inputs of an operation. Return whether `shown` changes."""
        is_finite = numerics.is_finite
        was_unknown = self._unknown.pop(numerics.number, None) is not None
        if is_finite is None:
            self._unknown[numerics.number] = UnknownInput(operation.operation_id, operation.step, numerics.is_pending)
            if len(self._unknown) > MAX_UNKNOWN:
                oldest = self._unknown.pop(next(iter(self._unknown)))
                self._unknown_until = max(self._unknown_until, oldest.step)
            return True
        return was_unknown if is_finite else self._record_non_finite(operation, numerics) or was_unknown

    def _record_non_finite(self, operation: _Awaited, numerics: Numerics) -> bool:
        """Record an operation with a non-finite input. Return False if there are too many."""
        before = self._non_finite
        if before and operation.step > before[-1].step + CALM_STEPS:
            before.clear()
        if len(before) >= MAX_NON_FINITE and operation.step == before[-1].step:
            return False
        event = NonFiniteInput(
            operation_id=operation.operation_id,
            operation=operation.name,
            step=operation.step,
            at_ns=operation.at_ns,
            is_nan=numerics.smallest is None or math.isnan(numerics.smallest),
            call_site=operation.call_site,
            onset=before[0].onset if before else operation.step,
            label=operation.label,
            parameters=self._culprits(numerics),
        )
        before[MAX_NON_FINITE - 1 :] = [event]  # beyond the limit, replace the newest event
        return True

    def _culprits(self, numerics: Numerics) -> ParameterRange | None:
        names = self._resolved.parameters(numerics.culprits)
        if not names:
            return None
        return ParameterRange(names[0], names[-1], 1 if len(names) == 1 else numerics.held, numerics.held)


CALM_STEPS: Final = 20
"""Number of steps without a non-finite value after which the next one is a new event."""
