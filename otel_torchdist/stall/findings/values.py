"""Finds what is wrong with values: the rank that brings the first one that is not finite, and outputs that differ.

Values that are not finite spread with the next reduction: one step later all ranks have them. So the first operation
counts in which some members' inputs were not finite and those of others were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import GroupView, OperationId
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.numerics import Places
from otel_torchdist.model.rank_values import NonFiniteInput, OutputChecksum, ParameterRange
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.tape.records.parameters import differing_places
from otel_torchdist.world.following.values import CALM_STEPS, PARAMETERS

PASSES_APART_NS: Final = 1_000_000_000
SETTLED_NS: Final = 5_000_000_000
"""How long members are waited for that have not entered an operation, not ended its step, or show no result of it."""
SKIPS_IN_A_ROW: Final = 8
"""A gradient scaler that leaves out so many steps in a row does not recover."""
MAX_REPORTED: Final = 16
"""Findings about values in a run; more would add no information."""


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Inputs that are not finite.

    Attributes:
        operation_id: The first operation that has such an input.
        operation: Its name.
        group: Its group; None if it is not known.
        ranks: The ranks whose inputs were not finite, ascending.
        others: The ranks whose inputs were; none of a send, which has one sender.
        are_first: Whether these ranks are known to be the first.
        unseen: Ranks of which it is not known what inputs they had until then, ascending.
        step: The step.
        is_nan: Whether a value is not a number; else one is infinite.
        call_site: Where the first of these ranks called it.
        skips: How many steps a gradient scaler has left out in a row; 0 for none.
        label: What the operation is for; see `OperationView`.
        parameters: Which of the message's parameters the first of these values belongs to; None if it is not known.
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


@dataclass(frozen=True, slots=True)
class Diverged:
    """Outputs or parameters that must be equal on all members, and are not.

    Attributes:
        operation_id: The operation, or what stands for it.
        operation: Its name; `PARAMETERS` where those differ.
        group: Its group; None if it is not known.
        ranks: The minority, ascending; all that were compared if there is no majority.
        others: The majority; none if there is none.
        step: The step.
        parameters: Which parameters differ; None if that is not known, and of outputs.
        unseen: Members whose results are not known, ascending.
        label: What the operation is for; see `OperationView`.
    """

    operation_id: OperationId
    operation: str
    group: GroupView | None
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    step: int
    parameters: ParameterRange | None = None
    unseen: tuple[int, ...] = ()
    label: str = ""

    @property
    def is_of_parameters(self) -> bool:
        """Whether parameters differ."""
        return self.operation == PARAMETERS


class ValueFinder:
    """Compares the values of one run's ranks."""

    def __init__(self) -> None:
        self._compared_ns = 0
        self._reported = 0
        self._covered_step: int | None = None
        self._first_seen_ns: dict[OperationId, int] = {}
        self._diverged: set[tuple[str, int]] = set()

    def find(self, world: WorldSnapshot, is_last: bool = False) -> list[NonFinite | Diverged]:
        """What to report now; at the end of the run nothing is waited for."""
        if not is_last and world.taken_ns - self._compared_ns < PASSES_APART_NS:
            return []
        self._compared_ns = world.taken_ns
        found: list[NonFinite | Diverged] = [*self._non_finite(world, is_last), *self._differing(world, is_last)]
        found = found[: MAX_REPORTED - self._reported]
        self._reported += len(found)
        return found

    def _non_finite(self, world: WorldSnapshot, is_last: bool) -> Iterator[NonFinite]:
        facts = [(view, fact) for view in world.ranks.values() for fact in view.values.non_finite]
        new = [one for one in sorted(facts, key=lambda one: one[1].onset) if not self._is_covered(one[1])]
        if not new:
            return
        first = min(new, key=lambda one: one[1].at_ns)[1]
        if not is_last and not self._is_settled(world, first):
            return
        skips = max(_skips(view, fact.step) for view, fact in new if fact.step == first.step)
        if 0 < skips < SKIPS_IN_A_ROW:
            return  # the scaler makes smaller what was too large
        self._covered_step = max(fact.step for _, fact in new)
        yield self._describe(world, new, skips)

    def _is_covered(self, fact: NonFiniteInput) -> bool:
        """Whether a fact is a consequence of what was reported, as all are until there is a calm."""
        if self._covered_step is None or fact.onset > self._covered_step + CALM_STEPS:
            return False
        self._covered_step = max(self._covered_step, fact.step)
        return True

    def _is_settled(self, world: WorldSnapshot, fact: NonFiniteInput) -> bool:
        """Whether all members have entered an operation, and ended its step, or have been waited for long enough."""
        if self._have_waited(world, fact.operation_id):
            return True
        channel = fact.operation_id.channel
        members = [view for view in world.ranks.values() if channel in view.progress and not view.is_over]
        if any(view.values.awaits(fact.step) for view in world.ranks.values() if not view.is_over):
            return False  # of a device that has not come to it
        return all(
            view.progress[channel].entered >= fact.operation_id.sequence and view.step > fact.step for view in members
        )

    def _are_all_known(
        self, world: WorldSnapshot, operation_id: OperationId, group: GroupView | None, by_rank: dict[int, int]
    ) -> bool:
        """Whether all members' results are known, or have been waited for: of the first two, none is the minority."""
        if self._have_waited(world, operation_id):
            return True
        if group is None:  # whose members' agent has not described it
            return False
        over = {view.rank for view in world.ranks.values() if view.is_over}
        return group.members <= by_rank.keys() | over  # also of those that are not seen yet

    def _have_waited(self, world: WorldSnapshot, operation_id: OperationId) -> bool:
        """Whether an operation has been in question for so long that no member is waited for any more."""
        return world.taken_ns - self._first_seen_ns.setdefault(operation_id, world.taken_ns) >= SETTLED_NS

    @staticmethod
    def _describe(world: WorldSnapshot, facts: list[tuple[RankView, NonFiniteInput]], skips: int) -> NonFinite:
        """The first operation in which some had such inputs and others had not, or a send; else the first of all."""
        by_operation: dict[OperationId, list[tuple[RankView, NonFiniteInput]]] = {}
        for view, fact in sorted(facts, key=lambda one: one[1].at_ns):
            by_operation.setdefault(fact.operation_id, []).append((view, fact))
        candidates = [
            (_with_finite(world, operation_id, bad[0][1].step), bad) for operation_id, bad in by_operation.items()
        ]
        first = next((one for one in candidates if one[0] or _is_message(one[1][0][1])), None)
        others, bad = first or candidates[0]
        view, fact = min(bad, key=lambda one: one[0].rank)
        unseen = _unseen(world, fact.step)
        return NonFinite(
            operation_id=fact.operation_id,
            operation=fact.operation,
            group=view.groups.get(fact.operation_id.channel.group),
            ranks=tuple(sorted(one.rank for one, _ in bad)),
            others=others,
            are_first=first is not None and not unseen,
            unseen=unseen,
            step=fact.step,
            is_nan=any(one.is_nan for _, one in bad),
            call_site=fact.call_site,
            skips=skips,
            label=fact.label,
            parameters=fact.parameters,
        )

    def _differing(self, world: WorldSnapshot, is_last: bool) -> Iterator[Diverged]:
        outputs: dict[OperationId, dict[int, OutputChecksum]] = {}
        for view in world.ranks.values():
            for one in view.values.outputs:
                outputs.setdefault(one.operation_id, {})[view.rank] = one
        for operation_id, by_member in outputs.items():
            operation, step, label = next((one.operation, one.step, one.label) for one in by_member.values())
            by_rank = {rank: one.checksum for rank, one in by_member.items()}
            persists = operation == PARAMETERS
            key = (operation_id.channel.group, -1 if persists else step // CALM_STEPS)
            if len(set(by_rank.values())) < 2 or key in self._diverged:
                continue
            group = world.group(operation_id.channel.group)
            if not is_last and not self._are_all_known(world, operation_id, group, by_rank):
                continue
            self._diverged.add(key)
            self._first_seen_ns.pop(operation_id, None)
            members = group.members if group is not None else frozenset(by_rank)
            ranks, others = _minority(by_rank, max(len(members), len(by_rank)))
            unseen = tuple(sorted(members - by_rank.keys()))
            which = _which_parameters(by_member, others or ranks) if persists else None
            yield Diverged(operation_id, operation, group, ranks, others, step, which, unseen, label)


def _skips(view: RankView, step: int) -> int:
    """How many steps up to this one a rank's gradient scaler has left out in a row."""
    skipped, count = {*view.values.skipped}, 0
    while step - count in skipped:
        count += 1
    return count


def _is_message(fact: NonFiniteInput) -> bool:
    return fact.operation_id.channel.is_point_to_point


def _unseen(world: WorldSnapshot, step: int) -> tuple[int, ...]:
    """Ranks that may have had such inputs first: of them it is not known, up to a step, what inputs they had."""
    everyone = {*world.ranks}
    for view in world.ranks.values():
        for group in view.groups.values():
            everyone |= group.members
    seen = {view.rank for view in world.ranks.values() if view.values.are_known_in(step)}
    return tuple(sorted(everyone - seen))


def _with_finite(world: WorldSnapshot, operation_id: OperationId, step: int) -> tuple[int, ...]:
    """Ranks that have entered a collective and whose inputs are known to be finite, ascending."""
    if operation_id.channel.is_point_to_point:  # who receives sends nothing
        return ()
    return tuple(
        sorted(
            view.rank
            for view in world.ranks.values()
            if view.values.are_all_checked
            and operation_id.channel in view.progress
            and view.progress[operation_id.channel].entered >= operation_id.sequence
            and operation_id not in {one.operation_id for one in (*view.values.non_finite, *view.values.unknown)}
            and view.values.unknown_until < step
        )
    )


def _which_parameters(by_rank: dict[int, OutputChecksum], reference: tuple[int, ...]) -> ParameterRange | None:
    """Where the parameters of some ranks differ from those of the first of others."""
    right = by_rank[reference[0]]
    of = right.parameters
    if of is None:
        return None
    found: Places | None = None
    for one in by_rank.values():
        if one.checksum == right.checksum or one.parameters is None:
            continue
        here, there = (one.checksum, one.parameters.sums), (right.checksum, of.sums)
        places = differing_places(here, there, of.count)
        if places is None or one.parameters.count != of.count:
            return None
        found = places if found is None else found.joined(places)
    names = next((one.parameters.names for one in by_rank.values() if one.parameters and one.parameters.names), ())
    if found is None:
        return None
    first, last = (names[place] if place < len(names) else f"parameter {place}" for place in (found.first, found.last))
    return ParameterRange(first, last, 1 if found.are_exact else found.last - found.first + 1, of.count)


def _minority(checksums: dict[int, int], members: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks that differ from the majority of all members, and that; all and none if there is no majority."""
    (most, count), *_ = Counter(checksums.values()).most_common(1)
    if 2 * count <= members:
        return tuple(sorted(checksums)), ()
    ranks = tuple(sorted(rank for rank, value in checksums.items() if value != most))
    return ranks, tuple(sorted(rank for rank, value in checksums.items() if value == most))
