"""Judges stalled operations. A pure function of a snapshot of the ranks.

Blame follows the waits to their root: a missing rank that waits elsewhere is not blamed; the rank it waits for is. The
verdict never claims more than the records show.

Backends tolerate some mismatched calls: gloo adds up bytes of another type and continues. If all members have completed
a mismatched call, it causes a later stall only if ranks have been out of step since then: a rank that skipped a call is
missing in the last one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from otel_torchdist.judge.verdict.first_death import FirstDeath, first_death
from otel_torchdist.judge.verdict.judging.circles import Hop, find_wrong_peer, judge_circle
from otel_torchdist.judge.verdict.judging.mismatched import (
    find_cause,
    find_name_mismatch,
    find_order_mismatch,
    past_misfit,
)
from otel_torchdist.judge.verdict.judging.sharing import crashed_in_shared, find_swapped, sharing_at
from otel_torchdist.judge.verdict.judging.stuck import stuck_ranks
from otel_torchdist.judge.verdict.launches import (
    LaunchFacts,
    beyond_world_size,
    cut_off,
    failed_alone,
    is_launch,
    minority_of,
    sizes_given,
)
from otel_torchdist.judge.verdict.roll_call import ELSEWHERE, RollCall, Standing, call_roll, open_by_operation, since_of
from otel_torchdist.judge.verdict.rules import expects
from otel_torchdist.judge.verdict.verdict import Doubt, Sharing, Verdict, urgency
from otel_torchdist.judge.verdict.verdict import verdict_at as _verdict
from otel_torchdist.judge.world.group_names import CreatedGroups
from otel_torchdist.judge.world.mismatch import Mismatch
from otel_torchdist.judge.world.occupations import remote_wait
from otel_torchdist.judge.world.threads import ThreadWait, WaitLink, thread_wait_of, wait_link_of
from otel_torchdist.model.calls import ANY_RANK, Channel, OperationId, OperationView
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.operations import RAISED
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot

SETTLED_NS: Final = 1_000_000_000
"""Minimum time in ns in an operation after which a rank counts as waiting, not as passing through."""


@dataclass(frozen=True, slots=True)
class _Missing:
    """An operation at which ranks are missing, and for each of them the waits that keep it from entering."""

    roll: RollCall
    hops: Mapping[int, Sequence[Hop]]


class _Visit(NamedTuple):
    """The search at an operation, which goes on once the operations for which it waits are judged."""

    operation_id: OperationId
    search: Generator[Hop, Verdict | None, Verdict | None]


class Judge:
    """Judges the operations of one snapshot."""

    def __init__(self, world: WorldSnapshot, threshold_ns: int) -> None:
        """Index the open operations of a snapshot.

        Args:
            world: The snapshot.
            threshold_ns: Minimum time for which all ranks must have been in an operation before it counts as stuck.
        """
        self._world = world
        self._threshold_ns = threshold_ns
        self._settled_ns = min(SETTLED_NS, threshold_ns // 2)
        self._open_at = open_by_operation(world)
        self._judged: dict[OperationId, Verdict | _Missing | None] = {}
        self._circles: dict[frozenset[tuple[OperationId, int]], Verdict] = {}

    def verdict_on(self, operation_id: OperationId) -> Verdict | None:
        """Find what holds up the operation `operation_id`, in which at least one rank waits or has failed.

        Returns: None if the operation makes progress: all ranks have entered, some of them within the threshold.
        """
        visits = [_Visit(operation_id, self._visit(operation_id))]
        visited: dict[OperationId, Verdict | None] = {operation_id: None}
        depths = {operation_id: 0}
        path: list[Hop] = []
        verdict: Verdict | None = None
        while visits:  # no recursion, because a ring of ranks may be longer than Python's limit
            try:
                hop = visits[-1].search.send(verdict)
            except StopIteration as end:
                verdict = visited[visits[-1].operation_id] = end.value
                del depths[visits.pop().operation_id], path[-1:]
                continue
            target = hop.waits_in.operation_id
            if target in depths:
                verdict = self._circle((*path[depths[target] :], hop))
            elif target in visited:
                verdict = visited[target]
            else:
                verdict = visited[target] = None
                depths[target] = len(visits)
                visits.append(_Visit(target, self._visit(target)))
                path.append(hop)
        return verdict

    def _visit(self, operation_id: OperationId) -> Generator[Hop, Verdict | None, Verdict | None]:
        """Judge an operation; blame the missing ranks that do not wait elsewhere; if all do, the ranks they wait for.

        Yields: The waits of missing ranks elsewhere. The verdict on each is sent; None if it makes progress.
        """
        if operation_id not in self._judged:  # a circle is entered once for each of its ranks
            self._judged[operation_id] = self._judge_alone(operation_id)
        alone = self._judged[operation_id]
        if not isinstance(alone, _Missing):
            return alone
        causes: list[Verdict] = []
        guilty: list[int] = []
        for rank, hops in alone.hops.items():
            found: list[Verdict] = []
            for hop in hops:
                cause = yield hop
                found += [cause] if cause is not None else []
            causes += found
            guilty += [] if found else [rank]
        if not guilty:
            return causes[0] if len(causes) == 1 else min(causes, key=urgency)
        # An announcement excuses only the rank that made it.
        unexpected = tuple(rank for rank in guilty if not expects(self._world.ranks[rank], self._world))
        return self._accuse(alone.roll, unexpected or tuple(guilty))

    def _judge_alone(self, operation_id: OperationId) -> Verdict | _Missing | None:
        """Judge an operation without the waits of missing ranks elsewhere, or return these waits."""
        roll = self._roll(operation_id)
        sizes = sizes_given(roll, self._members(roll).values())
        if sizes:
            return replace(_verdict(VerdictKind.RENDEZVOUS, roll, minority_of(sizes)), launch=LaunchFacts(sizes))
        # Before deaths, because backends end processes whose calls do not match.
        mismatch = find_name_mismatch(roll) or find_order_mismatch(roll, self._created)
        mismatch = mismatch or find_cause(self._members(roll), operation_id)
        sharing = find_swapped(self._world, roll) if mismatch is None else sharing_at(self._world, roll, mismatch)
        if sharing is not None:
            return _shared(roll, sharing, mismatch)
        if mismatch is not None:
            return _verdict(VerdictKind.MISMATCHED, roll, mismatch.ranks, mismatch=mismatch)
        failed = failed_alone(roll, self._members(roll).values())
        if failed:
            first = first_death([self._world.ranks[rank] for rank in failed])
            return replace(_verdict(VerdictKind.DEAD, roll, failed), first=first)
        first = self._first_death(roll)
        crashed = crashed_in_shared(self._world, roll, first) if first is not None else None
        if crashed is not None:
            return _shared(roll, crashed)
        if first is not None and self._is_to_blame(first, roll):
            return replace(_verdict(VerdictKind.DEAD, roll, first.ranks), first=first)
        doubt = _doubt_of_operation(roll)
        if doubt is not None:
            return _verdict(VerdictKind.UNKNOWN, roll, (), doubt)
        surplus = beyond_world_size(roll, self._world.taken_ns, self._threshold_ns)
        if surplus:
            return _verdict(VerdictKind.RENDEZVOUS, roll, surplus)
        without_store = cut_off(roll, self._world.taken_ns, self._threshold_ns)
        if without_store:
            return _verdict(VerdictKind.RENDEZVOUS, roll, without_store)
        missing = roll.ranks(*ELSEWHERE)
        if missing:
            return _Missing(roll, {rank: self._hops(roll, rank) for rank in missing})
        unreachable = tuple(rank for rank in roll.unseen if rank in self._world.unreachable)
        if unreachable:
            hosts = {self._world.unreachable[rank] for rank in unreachable}
            versions = {host: self._world.other_versions[host] for host in hosts & self._world.other_versions.keys()}
            verdict = _verdict(VerdictKind.UNREACHABLE, roll, unreachable)
            return replace(verdict, hosts=tuple(sorted(hosts)), versions=versions)
        if roll.silent and operation_id.channel.kind is RecordKind.RENDEZVOUS:
            return _verdict(VerdictKind.RENDEZVOUS, roll, roll.unseen)
        sharing = sharing_at(self._world, roll, None)
        if sharing is not None and self._world.taken_ns - roll.last_entered_ns >= self._threshold_ns:
            return _shared(roll, sharing)
        if Standing.UNSURE in roll.standings.values():
            return _verdict(VerdictKind.UNKNOWN, roll, (), Doubt.RECORDS_LOST)
        if roll.silent:
            return _verdict(VerdictKind.UNKNOWN, roll, (), Doubt.SILENT)
        if roll.group is not None and roll.group.is_inferred:
            return _verdict(VerdictKind.UNKNOWN, roll, (), Doubt.MEMBERS)
        raised = roll.ranks(Standing.RAISED)
        if raised:
            return _verdict(VerdictKind.ABSENT, roll, raised)
        tolerance_ns = max(operation.tolerance_ns for operation in roll.waits.values())
        if self._world.taken_ns - roll.last_entered_ns < max(self._threshold_ns, tolerance_ns):
            return None
        frozen = self._frozen(roll.ranks(Standing.WAITING))
        if frozen:
            return _verdict(VerdictKind.FROZEN, roll, frozen)
        misfit = past_misfit(self._members(roll), operation_id) if _has_streams(roll) else None
        if misfit is not None:
            return _verdict(VerdictKind.MISMATCHED, roll, misfit.ranks, mismatch=misfit)
        stuck = stuck_ranks(self._world, roll, self._threshold_ns)
        if stuck:
            return _verdict(VerdictKind.STUCK, roll, stuck)
        return _verdict(VerdictKind.TRANSPORT, roll, roll.ranks(Standing.FAILED))

    def verdict_after(self, operation_id: OperationId) -> Verdict | None:
        """Return the verdict on a run that ended between operations, after `operation_id`; None without a death."""
        roll = self._roll(operation_id)
        first = self._first_death(roll)
        if first is None or first.together or first.is_open or roll.silent:
            return None
        is_over = all(operation.record.how not in (None, *RAISED) for operation in roll.waits.values())
        since_ns = first.at_ns if is_over else roll.since_ns  # after a completed operation, no rank was waiting
        return replace(_verdict(VerdictKind.DEAD, roll, first.ranks), first=first, since_ns=since_ns)

    def _first_death(self, roll: RollCall) -> FirstDeath | None:
        return first_death([self._world.ranks[rank] for rank in roll.standings])

    def _is_to_blame(self, first: FirstDeath, roll: RollCall) -> bool:
        """Return whether a death is the reason why the others wait or were interrupted."""
        if (first.together or first.is_open) and not self._is_outlived(roll):
            return False
        if first.may_follow and roll.silent and not self._is_outlived(roll):
            return False
        if first.is_silence and not self._explains_the_wait(first, roll):
            return False
        if any(roll.standings[rank] is Standing.DEAD for rank in first.ranks):
            return True
        # If the dead ranks had left the operation, or only they failed in it, no other rank may be missing. Ranks that
        # failed in it may have been interrupted by a death not yet observed.
        failed = roll.ranks(Standing.FAILED)
        is_alone = len(failed) == 1 and not any(self._world.ranks[rank].alive for rank in roll.standings)
        if {*first.ranks} <= {*failed} and not is_alone:
            return False
        return not roll.silent and not roll.ranks(*ELSEWHERE)

    def _explains_the_wait(self, first: FirstDeath, roll: RollCall) -> bool:
        """Return whether the silence of ranks explains the others' wait.

        Silent ranks inside the operation do not block it while a live rank is missing. If no rank is missing, their
        threads may only be delayed, for example on a machine that swaps.
        """
        if not all(self._world.ranks[rank].at(roll.operation_id) for rank in first.ranks):
            return True
        if roll.ranks(*ELSEWHERE):
            return False
        return self._world.taken_ns - roll.last_entered_ns >= self._threshold_ns

    def _is_outlived(self, roll: RollCall) -> bool:
        """Return whether a live rank has waited for the threshold. If so, silent ranks count as dead."""
        living = [operation for rank, operation in roll.waits.items() if self._world.ranks[rank].alive]
        return any(self._world.taken_ns - since_of(operation) >= self._threshold_ns for operation in living)

    def _accuse(self, roll: RollCall, guilty: tuple[int, ...]) -> Verdict:
        """Return the verdict on missing ranks that wait for no other rank."""
        frozen = self._frozen(rank for rank in guilty if roll.standings[rank] is not Standing.ENDED)
        if frozen:
            return _verdict(VerdictKind.FROZEN, roll, frozen)
        absent = tuple(rank for rank in guilty if roll.standings[rank] is not Standing.QUEUED)
        if not absent:
            return _verdict(VerdictKind.DEVICE, roll, guilty)
        # A rank that had entered before a launcher ended it is not to blame if another rank had not entered.
        absent = tuple(rank for rank in absent if not self._world.ranks[rank].at(roll.operation_id)) or absent
        channel = roll.operation_id.channel
        have_ended = all(roll.standings[rank] is Standing.ENDED for rank in absent)
        if channel.kind is RecordKind.RENDEZVOUS and (is_launch(roll) or not have_ended):
            return _verdict(VerdictKind.RENDEZVOUS, roll, tuple(sorted((*absent, *roll.unseen))))
        # A rank that ended cleanly will not send the awaited message.
        is_owed = channel.is_point_to_point and have_ended
        return _verdict(VerdictKind.UNMATCHED if is_owed else VerdictKind.ABSENT, roll, absent)

    def _frozen(self, ranks: Iterable[int]) -> tuple[int, ...]:
        stopped = {rank: self._world.ranks[rank].stopped for rank in ranks}
        now_ns = self._world.taken_ns
        return tuple(rank for rank, state in stopped.items() if state is not None and state.is_frozen(now_ns))

    def _hops(self, roll: RollCall, rank: int) -> list[Hop]:
        """Return the waits that keep a missing rank from entering an operation."""
        remote = remote_wait(self._world, rank, roll.operation_id.channel)
        if remote is not None and remote.operation is not None and remote.is_own_thread:
            is_settled = since_of(remote.operation) <= self._world.taken_ns - self._settled_ns
            return [Hop(roll, rank, remote.operation, remote=remote)] if is_settled else []
        waits = [
            Hop(roll, rank, waiting, wait_link_of(self._world, rank, roll.operation_id, waiting), state)
            for waiting, state in self._waits_of(self._world.ranks[rank])
        ]
        return [hop for hop in waits if hop.link is not WaitLink.NONE]

    def _circle(self, circle: tuple[Hop, ...]) -> Verdict:
        key = frozenset((hop.roll.operation_id, hop.rank) for hop in circle)
        if key not in self._circles:
            self._circles[key] = self._judge_circle(circle)
        return self._circles[key]

    def _judge_circle(self, circle: tuple[Hop, ...]) -> Verdict:
        wrong_peer = find_wrong_peer(self._world, circle, self._open_at)
        if wrong_peer is None:
            return judge_circle(circle)
        owed, rank = wrong_peer
        return _verdict(VerdictKind.UNMATCHED, self._roll(owed), (rank,))

    def _waits_of(self, view: RankView) -> list[tuple[OperationView, ThreadWait]]:
        """Return the first operation of each channel in which threads of a rank wait. Later ones wait for it.

        An open operation without a confirmed wait counts only if no wait is confirmed, and its thread is not elsewhere.
        """
        settled = self._world.taken_ns - self._settled_ns
        open_here = [wait for wait in view.open if view.waits_in(wait) and since_of(wait) <= settled]
        states = [(wait, thread_wait_of(view, wait)) for wait in open_here]
        waits = [(wait, state) for wait, state in states if state is ThreadWait.WAITS]
        first: dict[Channel, tuple[OperationView, ThreadWait]] = {}
        for operation, state in waits or [(wait, state) for wait, state in states if state is not ThreadWait.ELSEWHERE]:
            first.setdefault(operation.operation_id.channel, (operation, state))
        return list(first.values())

    @cached_property
    def _created(self) -> CreatedGroups:
        return CreatedGroups(self._world.ranks.values())

    def _members(self, roll: RollCall) -> dict[int, RankView]:
        """Return the members that report, by rank."""
        return {rank: self._world.ranks[rank] for rank in roll.standings}

    def _roll(self, operation_id: OperationId) -> RollCall:
        return call_roll(self._world, operation_id, self._open_at.get(operation_id, {}))


def _shared(roll: RollCall, sharing: Sharing, mismatch: Mismatch | None = None) -> Verdict:
    """Return the verdict on a shared group. It names no rank, because the order of calls is random."""
    return replace(_verdict(VerdictKind.SHARED_GROUP, roll, (), mismatch=mismatch), sharing=sharing)


def _doubt_of_operation(roll: RollCall) -> Doubt | None:
    if roll.group is None:
        return Doubt.NO_GROUP
    channel = roll.operation_id.channel
    if channel.is_point_to_point and channel.source == ANY_RANK:
        return Doubt.ANY_SOURCE
    return None if roll.aligned else Doubt.UNALIGNED


def _has_streams(roll: RollCall) -> bool:
    """Return whether a backend's transfers are streams without boundaries. gloo sends the length of each transfer."""
    return roll.group is not None and roll.group.name.backend != "gloo"
