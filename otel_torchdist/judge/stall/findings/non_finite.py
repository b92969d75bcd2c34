"""Detects the rank that introduces the first non-finite value.

Non-finite values spread with the next reduction: one step later all ranks have them. So the evidence is the
first operation in which some members had non-finite inputs and others finite inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.stall.attributes import of_frame, of_operation_id
from otel_torchdist.judge.stall.findings.restraint import Patience
from otel_torchdist.judge.verdict.wording.calls import called_in, describe_operation
from otel_torchdist.judge.verdict.wording.sentence import with_short_start
from otel_torchdist.judge.world.following.values import CALM_STEPS
from otel_torchdist.model.calls import GroupView, OperationId
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.values import NonFiniteInput, ParameterRange
from otel_torchdist.model.reports.finding import Finding, FindingKind, JudgedWorld, Severity
from otel_torchdist.model.reports.incident import incident_name
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import have, name_ranks
from otel_torchdist.telemetry import semconv

SKIPS_IN_A_ROW: Final = 8
"""Number of consecutive skipped steps after which a gradient scaler counts as not recovering."""


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Inputs with non-finite values.

    Attributes:
        operation_id: The first operation with such an input.
        group: None if unknown.
        ranks: Ranks with non-finite inputs, ascending.
        others: Ranks with finite inputs, ascending; empty for a send, which has one sender.
        are_first: Whether these ranks are known to be the first.
        unseen: Ranks with unknown inputs before this operation, ascending.
        is_nan: Whether a value is NaN; otherwise infinite.
        call_site: Where the first of these ranks called the operation.
        skips: Number of steps in a row skipped by a gradient scaler; 0 if none.
        label: Purpose of the operation; see `OperationView`.
        parameters: The message's parameters that the first such value belongs to; None if unknown.
    """

    operation_id: OperationId
    operation: str
    group: GroupView | None
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    are_first: bool
    step: int
    is_nan: bool
    call_site: CallSiteName | None
    skips: int
    unseen: tuple[int, ...] = ()
    label: str = ""
    parameters: ParameterRange | None = None

    @property
    def text(self) -> str:
        """The first ranks with non-finite values, and the operation, as a sentence."""
        what = "values that are not numbers (NaN)" if self.is_nan else "infinite values"
        operation = describe_operation(self.operation, self.group, self.operation_id, self.label)
        where = f"in the inputs of {operation} in step {self.step}"
        called = called_in(self.call_site)
        were = f"; the inputs of {name_ranks(self.others)} were finite" if self.others else ""
        if not self.are_first:
            had = f"{name_ranks(self.ranks)} {have(self.ranks)} {what}"
            cause = f"{had} {where}{called}{were}{self._unknown or ', and'} no rank is known to be first"
        else:
            first = "are the first with" if len(self.ranks) > 1 else "is the first with"
            cause = f"{name_ranks(self.ranks)} {first} {what} {where}{called}{were}"
        skips = f"; the gradient scaler has left out {self.skips} steps in a row" if self.skips else ""
        return f"{cause}{_held(self.parameters)}{skips}"

    @property
    def _unknown(self) -> str:
        """The ranks with unknown inputs, as a clause; '' if they do not matter."""
        unknown = [rank for rank in self.unseen if rank not in self.ranks]
        if not unknown or (not self.others and {*self.ranks} <= {*self.unseen}):
            return ""
        return f"; the inputs of {name_ranks(unknown)} until then are not known, so"

    def finding(self, judged: JudgedWorld) -> Finding:
        """Return the finding on non-finite values."""
        operation_id, parameters = self.operation_id, self.parameters
        return Finding(
            kind=FindingKind.NON_FINITE,
            severity=Severity.ERROR,
            incident=judged.incident(f"values finite {incident_name(operation_id)} {judged.world.taken_ns}"),
            ranks=self.ranks,
            group=operation_id.channel.group,
            operation=self.operation,
            text=with_short_start(self.text),
            world=judged.world,
            attributes={
                semconv.STEP: self.step,
                **of_operation_id(self.operation, self.group, operation_id),
                **({semconv.NON_FINITE_PARAMETERS: parameters.text} if parameters is not None else {}),
                **of_frame(self.call_site),
            },
        )


def _held(parameters: ParameterRange | None) -> str:
    """Describe the parameters that the first non-finite value belongs to, or may belong to."""
    if parameters is None:
        return ""
    if parameters.candidates > 1:
        return f"; the message holds {parameters.count:,} parameters, {parameters.text}"
    of = f", one of {parameters.count:,} parameters in the message" if parameters.count > 1 else ""
    return f"; the first such value belongs to {parameters.first}{of}"


class NonFiniteFinder:
    """Detects the first non-finite values of one run."""

    def __init__(self) -> None:
        self._covered_step: int | None = None
        self._patience = Patience()

    def find(self, world: WorldSnapshot, is_last: bool) -> Iterator[NonFinite]:
        """Yield the non-finite values to report now. At the end of a run, report immediately."""
        facts = [(view, fact) for view in world.ranks.values() for fact in view.values.non_finite]
        new = [(view, fact) for view, fact in sorted(facts, key=_onset) if not self._is_covered(fact)]
        if not new:
            return
        first = min((fact for _, fact in new), key=lambda fact: fact.at_ns)
        if not is_last and not self._is_settled(world, first):
            return
        skips = max(_skips(view, fact.step) for view, fact in new if fact.step == first.step)
        if 0 < skips < SKIPS_IN_A_ROW:
            return  # the scaler reduces values that overflowed
        self._covered_step = max(fact.step for _, fact in new)
        yield _describe(world, new, skips)

    def _is_covered(self, fact: NonFiniteInput) -> bool:
        """Return whether a value follows a reported one. All values do, until `CALM_STEPS` steps without a value."""
        if self._covered_step is None or fact.onset > self._covered_step + CALM_STEPS:
            return False
        self._covered_step = max(self._covered_step, fact.step)
        return True

    def _is_settled(self, world: WorldSnapshot, fact: NonFiniteInput) -> bool:
        """Return whether all members have entered an operation and ended its step, or are overdue."""
        if self._patience.is_over(world, fact.operation_id):
            return True
        channel = fact.operation_id.channel
        members = [view for view in world.ranks.values() if channel in view.progress and not view.is_over]
        if any(view.values.awaits(fact.step) for view in world.ranks.values() if not view.is_over):
            return False  # a device has not reached the operation yet
        return all(
            view.progress[channel].entered >= fact.operation_id.sequence and view.step > fact.step for view in members
        )


def _onset(entry: tuple[RankView, NonFiniteInput]) -> int:
    return entry[1].onset


def _describe(world: WorldSnapshot, facts: list[tuple[RankView, NonFiniteInput]], skips: int) -> NonFinite:
    """Return the first operation with both kinds of inputs, or the first send; else the first of all."""
    by_operation: dict[OperationId, list[tuple[RankView, NonFiniteInput]]] = {}
    for view, fact in sorted(facts, key=lambda entry: entry[1].at_ns):
        by_operation.setdefault(fact.operation_id, []).append((view, fact))
    candidates = [
        (_with_finite(world, operation_id, inputs[0][1].step), inputs) for operation_id, inputs in by_operation.items()
    ]
    first = next(((finite, inputs) for finite, inputs in candidates if finite or _is_message(inputs[0][1])), None)
    others, inputs = first or candidates[0]
    view, fact = min(inputs, key=lambda entry: entry[0].rank)
    unseen = _unseen(world, fact.step)
    return NonFinite(
        operation_id=fact.operation_id,
        operation=fact.operation,
        group=view.groups.get(fact.operation_id.channel.group),
        ranks=tuple(sorted(view.rank for view, _ in inputs)),
        others=others,
        are_first=first is not None and not unseen,
        unseen=unseen,
        step=fact.step,
        is_nan=any(value.is_nan for _, value in inputs),
        call_site=fact.call_site,
        skips=skips,
        label=fact.label,
        parameters=fact.parameters,
    )


def _skips(view: RankView, step: int) -> int:
    """Return the number of steps in a row, up to this one, that a rank's gradient scaler skipped."""
    skipped, count = {*view.values.skipped}, 0
    while step - count in skipped:
        count += 1
    return count


def _is_message(fact: NonFiniteInput) -> bool:
    return fact.operation_id.channel.is_point_to_point


def _unseen(world: WorldSnapshot, step: int) -> tuple[int, ...]:
    """Return the ranks with unknown inputs up to a step. One of them may have been the first."""
    everyone = {*world.ranks}
    for view in world.ranks.values():
        for group in view.groups.values():
            everyone |= group.members
    seen = {view.rank for view in world.ranks.values() if view.values.are_known_in(step)}
    return tuple(sorted(everyone - seen))


def _with_finite(world: WorldSnapshot, operation_id: OperationId, step: int) -> tuple[int, ...]:
    """Return the ranks that entered a collective with inputs known to be finite, ascending."""
    if operation_id.channel.is_point_to_point:  # the receiver sends nothing
        return ()
    return tuple(
        sorted(
            view.rank
            for view in world.ranks.values()
            if view.values.are_all_checked
            and operation_id.channel in view.progress
            and view.progress[operation_id.channel].entered >= operation_id.sequence
            and operation_id not in {value.operation_id for value in (*view.values.non_finite, *view.values.unknown)}
            and view.values.unknown_until < step
        )
    )
