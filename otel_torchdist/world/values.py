"""What the values in one rank's tensors were like, as far as a judge compares them with those of other ranks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final

from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.tape.numerics import Numerics, NumericsFlag
from otel_torchdist.tape.records import Operation, StepMark
from otel_torchdist.world.calls import Channel, OperationId
from otel_torchdist.world.model import NonFiniteInput, OutputChecksum, RankValues
from otel_torchdist.world.resolved import ResolvedNames

MAX_NON_FINITE: Final = 32
"""Operations with such inputs that are kept: the oldest ones, since what follows are consequences."""
MAX_OUTPUTS: Final = 512
MAX_SKIPPED: Final = 64
MAX_AWAITED: Final = 1_024
PARAMETERS: Final = "parameters"
"""What stands for an operation where a checksum is that of parameters."""


class ValueLog:
    """Keeps what a snapshot needs of one rank's values.

    Attributes:
        shown: That.
    """

    def __init__(self, are_all_checked: bool, resolved: ResolvedNames) -> None:
        """Keep nothing yet.

        Args:
            are_all_checked: See `RankValues`.
            resolved: Resolves the names of operations.
        """
        self._resolved = resolved
        self._are_all_checked = are_all_checked
        self._non_finite: list[NonFiniteInput] = []
        self._outputs: deque[OutputChecksum] = deque(maxlen=MAX_OUTPUTS)
        self._skipped: deque[int] = deque(maxlen=MAX_SKIPPED)
        self._awaited: dict[int, tuple[OperationId, str, int, str]] = {}
        self.shown = RankValues(are_all_checked)

    def observe(self, entered: Iterable[Operation], numerics: Iterable[Numerics], steps: Iterable[StepMark]) -> None:
        """Process what a poll has found."""
        has_changed = False
        for operation in entered:
            if operation.numerics is not None:
                has_changed |= self._entered(operation, operation.numerics)
        for one in numerics:
            known = self._parameters(one) or self._awaited.get(one.number)
            if known is not None and one.output_checksum is not None:
                self._awaited.pop(one.number, None)
                operation_id, name, step, label = known
                self._outputs.append(OutputChecksum(operation_id, name, step, one.output_checksum, label))
                has_changed = True
        for mark in steps:
            if mark.skipped:
                self._skipped.append(mark.step)
                has_changed = True
        if has_changed:
            self.shown = RankValues(
                self._are_all_checked, tuple(self._non_finite), tuple(self._outputs), tuple(self._skipped)
            )

    def _parameters(self, numerics: Numerics) -> tuple[OperationId, str, int, str] | None:
        """What a checksum of parameters is compared by; None if it is that of an operation."""
        group = self._resolved.group(numerics.group) if int(numerics.flags) & NumericsFlag.PARAMETERS else None
        if group is None:
            return None
        channel = Channel(RecordKind.NUMERICS, group.key)
        return OperationId(channel, numerics.sequence), PARAMETERS, numerics.step, ""

    def _entered(self, operation: Operation, numerics: Numerics) -> bool:
        view = self._resolved.operation(operation)
        self._awaited[numerics.number] = (view.operation_id, view.name, operation.step, view.label)
        if len(self._awaited) > MAX_AWAITED:
            del self._awaited[next(iter(self._awaited))]
        if numerics.is_finite:
            return False
        before = self._non_finite
        if before and operation.step > before[-1].step + CALM_STEPS:
            before.clear()
        if len(before) >= MAX_NON_FINITE and operation.step == before[-1].step:
            return False
        found = NonFiniteInput(
            operation_id=view.operation_id,
            operation=view.name,
            step=operation.step,
            at_ns=operation.entered_ns,
            is_nan=numerics.smallest is None or math.isnan(numerics.smallest),
            call_site=view.call_site,
            onset=before[0].onset if before else operation.step,
            label=view.label,
        )
        before[MAX_NON_FINITE - 1 :] = [found]  # beyond that only the newest one is kept
        return True


CALM_STEPS: Final = 20
"""Steps without such a value after which the next one is something new."""
