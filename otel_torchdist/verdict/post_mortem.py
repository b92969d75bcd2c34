"""The verdict on a run at its last moment: what an agent would have reported if it had been watching.

While a rank is alive, that moment is now. Afterwards it is the newest sign of life on any tape. A rank that ended
silently was alive then, unless the tapes show otherwise: it fell silent long before, while nothing held its GIL, or the
last thing that others did was to fail in an operation that they shared with it. Where an agent has seen the end, it has
recorded beside the tapes when each rank died.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from otel_torchdist.job.lives import RankLife
from otel_torchdist.processes.state import HEARTBEAT_LATE_NS, Stopped
from otel_torchdist.tape.layout import TapeState
from otel_torchdist.verdict.compiling import CompileExcuses
from otel_torchdist.verdict.first_death import FirstDeath, first_death, interrupted_operation
from otel_torchdist.verdict.judge import Judge
from otel_torchdist.verdict.model import Verdict, VerdictKind, locate, urgency
from otel_torchdist.verdict.root_cause import RootFinder
from otel_torchdist.verdict.rules import StallRules, Standstill, is_expected
from otel_torchdist.verdict.waits import DYING_NS, left_behind, waits_of
from otel_torchdist.world.model import Channel, OperationId, OperationView, RankView, WorldSnapshot, life_in
from otel_torchdist.world.recorded_stacks import last_record_ns

_OF_DEATHS: Final = (VerdictKind.MISMATCHED, VerdictKind.DEAD)
_OF_FAILURES: Final = (*_OF_DEATHS, VerdictKind.ABSENT)


def judge(moment: LastMoment, rules: StallRules) -> Verdict | None:
    """The verdict with its places; None if nothing had stalled and no rank was left behind.

    Args:
        moment: The run at its last moment.
        rules: Which waits are stalls.
    """
    world = moment.world
    verdict_on = Judge(world, rules.threshold_ns).verdict_on
    found = _of_stalls(world, rules)
    found += _of_kinds(
        _OF_DEATHS, (verdict_on(operation_id) for operation_id in left_behind(world, dict(moment.signs)))
    )
    failures = _of_kinds(_OF_FAILURES, (verdict_on(operation_id) for operation_id in _interrupted(world)))
    # Ranks that are not seen may have interrupted these.
    found += [verdict for verdict in failures if verdict.kind is not VerdictKind.ABSENT or not verdict.roll.silent]
    best = min(found, key=urgency, default=None)
    return locate(world, best) if best is not None else None


def stalled_verdict(world: WorldSnapshot, rules: StallRules) -> Verdict | None:
    """The verdict on what had stalled in a snapshot; None when nothing had, or it was expected."""
    return min(_of_stalls(world, rules), key=urgency, default=None)


def _of_stalls(world: WorldSnapshot, rules: StallRules) -> list[Verdict]:
    judge = Judge(world, rules.threshold_ns)
    stalls = [judge.verdict_on(operation_id) for operation_id in _stalled(world, rules)]
    return [verdict for verdict in stalls if verdict is not None and not _is_excused(world, verdict, rules)]


def age_ns(verdict: Verdict, moment_ns: int) -> int:
    """How long the first rank has waited: until the moment, or until the last waiting rank was interrupted."""
    ends = [operation.record.completed_ns for operation in verdict.roll.waits.values()]
    known = [end for end in ends if end is not None]
    return (max(known) if len(known) == len(ends) else moment_ns) - verdict.since_ns


def _is_excused(world: WorldSnapshot, verdict: Verdict, rules: StallRules) -> bool:
    """Whether ranks expect the wait or compile. An expected wait counts from when it was no longer expected."""
    lately = dataclasses.replace(world, taken_ns=world.taken_ns - rules.threshold_ns)
    return is_expected(lately, verdict) or CompileExcuses(rules.threshold_ns).excuse(world, verdict)


def _of_kinds(kinds: tuple[VerdictKind, ...], verdicts: Iterable[Verdict | None]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict is not None and verdict.kind in kinds]


def _stalled(world: WorldSnapshot, rules: StallRules) -> Iterable[OperationId]:
    """The first operation of each channel that has waited for too long; later ones wait for that."""
    first: dict[Channel, OperationId] = {}
    waits, standstill = waits_of(world), Standstill()
    standstill.observe(world, waits)
    ran_until_ns = standstill.ran_until_ns(world.taken_ns)
    for wait in waits:
        operation_id = wait.operation.operation_id
        if rules.is_stalled(wait, ran_until_ns - wait.since_ns):
            first[operation_id.channel] = min(first.get(operation_id.channel, operation_id), operation_id)
    return first.values()


def _interrupted(world: WorldSnapshot) -> set[OperationId]:
    """The operations in which ranks that failed were interrupted."""
    failed = [view for view in world.ranks.values() if life_in(view) is RankLife.FAILED]
    return {interrupted.operation_id for view in failed if (interrupted := interrupted_operation(view)) is not None}


TOGETHER_NS: Final = 1_500_000_000
"""Heartbeats are a second apart: ranks that fell silent within this time may have died in any order."""


@dataclass(frozen=True, slots=True)
class LastMoment:
    """A run at the last moment that its tapes show.

    Attributes:
        world: The snapshot; ranks that were alive then are shown as alive.
        is_now: Whether that moment is now, because a rank is alive.
        signs: By rank, the monotonic time of its last sign of life.
    """

    world: WorldSnapshot
    is_now: bool
    signs: Mapping[int, int]


def last_moment(run_id: int, views: Sequence[RankView], now_ns: int) -> LastMoment:
    """The last moment of a run.

    Args:
        run_id: Its id.
        views: Its ranks as they are now.
        now_ns: Monotonic time.
    """
    signs = {view.rank: last_sign_ns(view) for view in views}
    is_now = any(view.alive for view in views)
    # A little later than the last event: what is over by then is over.
    moment_ns = now_ns if is_now else max(signs.values()) + 1
    alive = {view.rank for view in views if (view.alive if is_now else _was_alive(view, views, moment_ns))}
    gone = _gone_since([view for view in views if view.rank not in alive])
    then = {
        view.rank: dataclasses.replace(view, alive=view.rank in alive, gone_since_ns=gone.get(view.rank))
        for view in views
    }
    return LastMoment(WorldSnapshot(run_id, moment_ns, MappingProxyType(then)), is_now, signs)


def last_sign_ns(view: RankView) -> int:
    """When a rank last showed a sign of life: a heartbeat, a record, or a stack that it wrote since."""
    return max(view.heartbeat_ns, last_record_ns(view), view.stacks.asked_ns if view.stacks is not None else 0)


def _was_alive(view: RankView, views: Sequence[RankView], moment_ns: int) -> bool:
    sign_ns = last_sign_ns(view)
    is_silent = moment_ns - sign_ns > HEARTBEAT_LATE_NS and not _was_silent_for_the_gil(view)
    if life_in(view) is not RankLife.DEAD or is_silent:
        return False
    if any(life_in(other) is RankLife.FAILED and interrupted_operation(other) is None for other in views):
        return True  # that rank failed first: launchers then end the others
    return not any(_was_interrupted_by(view, other, sign_ns) for other in views if other is not view)


def _was_silent_for_the_gil(view: RankView) -> bool:
    """Whether the last sign of a rank is a stack that a signal took: it was alive, but could not write heartbeats."""
    return view.stacks is not None and view.stacks.by_signal and view.stacks.asked_ns > view.heartbeat_ns


def _was_interrupted_by(view: RankView, other: RankView, after_ns: int) -> bool:
    """Whether `other` failed in an operation that it shared with a rank, after that rank's last sign of life."""
    interrupted, own = interrupted_operation(other), interrupted_operation(view)
    if interrupted is None or (interrupted.record.completed_ns or 0) < after_ns:
        return False
    if own is not None and own.operation_id == interrupted.operation_id:
        return False  # both were interrupted by another rank
    channel = interrupted.operation_id.channel
    if channel.is_point_to_point:
        return view.rank in (channel.source, channel.destination)
    return interrupted.group is not None and view.rank in interrupted.group.members


def _gone_since(gone: Sequence[RankView]) -> dict[int, int]:
    """By rank, when it was gone. Silent deaths whose order the heartbeats do not show count as one death."""
    signs = {view.rank: last_sign_ns(view) for view in gone}
    silent = [signs[view.rank] for view in gone if life_in(view) is RankLife.DEAD]
    together = range(min(silent), min(silent) + TOGETHER_NS) if silent else range(0)
    return {
        view.rank: together[0] if life_in(view) is RankLife.DEAD and signs[view.rank] in together else signs[view.rank]
        for view in gone
    }


@dataclass(frozen=True, slots=True)
class SeenEnd:
    """What the deaths of a run's ranks show.

    Attributes:
        verdict: The verdict with places; None if no rank held the others up, and none died first.
        at_ns: The moment that it refers to.
        was_hung: Whether the verdict is on ranks that hung, and were ended afterwards.
        first: The death that explains the others; None if none has died.
    """

    verdict: Verdict | None
    at_ns: int
    was_hung: bool
    first: FirstDeath | None


def seen_end(run_id: int, views: Sequence[RankView], rules: StallRules, now_ns: int) -> SeenEnd | None:
    """Judge a run by the deaths that an agent has seen; None if it has not seen all of them.

    Args:
        run_id: Its id.
        views: Its ranks as they are now.
        rules: Which waits are stalls.
        now_ns: Monotonic time.
    """
    first = first_death(views)
    if first is None or not first.is_known or not first.deaths:
        return None
    died_ns = min(view.death.at_ns for view in views if view.is_dead and view.death is not None)
    before = WorldSnapshot(run_id, died_ns, _by_rank([_alive_at(view, died_ns) for view in views]))
    hung = stalled_verdict(before, rules)
    if hung is not None:
        return SeenEnd(locate(before, hung), died_ns, True, first)
    ends = [view.death.at_ns for view in views if view.death is not None]
    end_ns = now_ns if any(view.alive for view in views) else max(ends)
    after = WorldSnapshot(run_id, end_ns, _by_rank([_gone(view) for view in views]))
    verdict = RootFinder(rules.threshold_ns).find(after, [], None)
    return SeenEnd(locate(after, verdict) if verdict is not None else None, end_ns, False, first)


def _by_rank(views: Sequence[RankView]) -> Mapping[int, RankView]:
    return MappingProxyType({view.rank: view for view in views})


def _gone(view: RankView) -> RankView:
    """A rank that was watched until it died."""
    if view.death is None:
        return view
    at_ns = view.death.at_ns
    return dataclasses.replace(view, gone_since_ns=at_ns, seen_alive_ns=at_ns - 1)


def _alive_at(view: RankView, at_ns: int) -> RankView:
    """A rank as it was just before the first death, back in the operation that this death interrupted."""
    death = view.death
    if death is None or view.state is TapeState.FINISHED or view.has_left:
        return view
    if view.state is TapeState.FAILED and interrupted_operation(view) is None:
        return dataclasses.replace(view, gone_since_ns=death.at_ns)
    stopped = Stopped(death.stopped, death.stopped_since_ns) if death.stopped else None
    then = dataclasses.replace(
        view, alive=True, gone_since_ns=None, state=TapeState.RUNNING, failure="", stopped=stopped, death=None,
        ran_ns=death.ran_ns,
    )  # fmt: skip
    interrupted = interrupted_operation(view)
    if interrupted is None or (interrupted.record.completed_ns or 0) < at_ns - DYING_NS:
        return then
    return _back_in(then, interrupted)


def _back_in(view: RankView, interrupted: OperationView) -> RankView:
    record = dataclasses.replace(interrupted.record, completed_ns=None, how=None, failure=0)
    channel, sequence = interrupted.operation_id
    progress = dict(view.progress)
    if channel in progress and progress[channel].failed == sequence:
        progress[channel] = progress[channel]._replace(failed=0, failure="")
    inside = dataclasses.replace(interrupted, record=record, failure="", waiting_since_ns=record.waiting_since_ns)
    return dataclasses.replace(
        view,
        open=(*view.open, inside),
        last=_before(view.last, interrupted.operation_id),
        progress=MappingProxyType(progress),
    )


def _before(last: OperationView | None, operation_id: OperationId) -> OperationView | None:
    return None if last is None or last.operation_id == operation_id else last
