"""Reconstructs the verdict that an agent would have given at a run's last moment.

An agent that observed the end has recorded each rank's death beside the tapes, and possibly the verdict of all nodes'
agents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from otel_torchdist.judge.verdict.compiling import CompileExcuses
from otel_torchdist.judge.verdict.deaths import interrupted_operation
from otel_torchdist.judge.verdict.earlier_verdict import is_canceled, verdict_of_all_nodes
from otel_torchdist.judge.verdict.first_death import FirstDeath, first_death
from otel_torchdist.judge.verdict.giving_up import back_in
from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.launches import file_left_over
from otel_torchdist.judge.verdict.past.last_moment import HungRun, LastMoment, find_hung, last_moment
from otel_torchdist.judge.verdict.root_cause import RootFinder
from otel_torchdist.judge.verdict.rules import (
    DYING_NS,
    StallRules,
    Standstill,
    blocked_by_deaths,
    is_expected,
    waits_of,
)
from otel_torchdist.judge.verdict.verdict import Verdict, locate, urgency
from otel_torchdist.model.calls import Channel, OperationId, OperationView
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.rank_state.lives import RankLife, Stopped
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot, life_in
from otel_torchdist.node.job.kept_results import AgentsVerdict


@dataclass(frozen=True, slots=True)
class PostMortem:
    """The result of judging a run at its last moment.

    Attributes:
        moment: The run at that moment.
        verdict: The verdict, with places; None if no operation had stalled unexpectedly and no rank waited for a dead
            rank, or if these tapes do not decide it.
        end: The conclusions from the deaths that an agent recorded; None if it has not recorded all of them.
        of_agents: The verdict of all nodes' agents, if it is more specific than the verdict on these tapes.
        unseen: Ranks of the run without a tape here, ascending.
        has_deaths: Whether a rank has failed or died.
    """

    moment: LastMoment
    verdict: Verdict | None
    end: SeenEnd | None
    of_agents: AgentsVerdict | None
    unseen: tuple[int, ...]
    has_deaths: bool

    @property
    def has_verdict(self) -> bool:
        """Whether there is a verdict."""
        return self.verdict is not None or self.of_agents is not None

    @property
    def named(self) -> tuple[int, ...]:
        """The named ranks, ascending."""
        if self.of_agents is not None:
            return self.of_agents.named
        return self.verdict.ranks if self.verdict is not None else ()

    @property
    def is_undecided(self) -> bool:
        """Whether ranks have died here, possibly because of ranks without a tape here."""
        return not self.has_verdict and bool(self.unseen) and self.has_deaths

    @property
    def age_ns(self) -> int:
        """Age of the first wait; 0 without a verdict on these tapes."""
        if self.verdict is None:
            return 0
        return self.verdict.age_ns(self.end.at_ns if self.end is not None else self.moment.world.taken_ns)

    @property
    def hung_ns(self) -> int | None:
        """Time for which the job hung before it was ended; None if it did not hang."""
        end = self.end
        if end is None or not end.was_hung or end.verdict is None:
            return None
        return end.verdict.age_ns(end.at_ns)

    @property
    def ended_together(self) -> FirstDeath | None:
        """The deaths with a common cause; None if there is none."""
        first = self.end.first if self.end is not None and not self.has_verdict else None
        return first if first is not None and first.together else None


def examine(
    run_id: int,
    world_size: int,
    views: Sequence[RankView],
    rules: StallRules,
    now_ns: int,
    written: AgentsVerdict | None = None,
) -> PostMortem:
    """Judge a run.

    Args:
        run_id: Run id.
        world_size: Number of ranks on all nodes.
        views: The run's ranks as they are now; at least one.
        rules: Which waits are stalls.
        now_ns: Monotonic time.
        written: The verdict written down by this node's agent, or None.
    """
    moment = last_moment(run_id, views, now_ns)
    if any(view.switched_off_ns for view in views):
        return PostMortem(moment=moment, verdict=None, end=None, of_agents=written, unseen=(), has_deaths=False)
    hung = find_hung(WorldSnapshot(run_id, now_ns, _by_rank(views)), rules.threshold_ns)
    end = seen_end(run_id, views, rules, now_ns) if hung is None else _end_of(hung)
    verdict = end.verdict if end is not None else judge(moment, rules)
    of_agents = verdict_of_all_nodes(written, moment.world, world_size, verdict)
    known = {view.rank for view in views}
    return PostMortem(
        moment=moment,
        verdict=verdict if of_agents is None else None,
        end=end,
        of_agents=of_agents,
        unseen=tuple(rank for rank in range(world_size) if rank not in known),
        has_deaths=any(life_in(view).ended_badly for view in views),
    )


def judge(moment: LastMoment, rules: StallRules) -> Verdict | None:
    """Return the verdict with its places; None if no operation had stalled and no rank waited for a dead rank.

    Args:
        moment: The run at its last moment.
        rules: Which waits are stalls.
    """
    best = min(_verdicts(moment, rules), key=urgency, default=None)
    return _located(moment, best) if best is not None else None


def roots_of(moment: LastMoment, rules: StallRules) -> list[Verdict]:
    """Return all verdicts of the strongest kind, with their places, so that every culprit is named.

    Two faults may occur together, such as two broken devices that each block a group. The first verdict names the most
    ranks, and each further verdict at least one more rank. If no rank is named, there is only one verdict.

    Args:
        moment: The run at its last moment.
        rules: Which waits are stalls.
    """
    verdicts = sorted(_verdicts(moment, rules), key=urgency)
    best = [verdict for verdict in verdicts if verdict.kind is verdicts[0].kind]
    roots: list[Verdict] = []
    named: set[int] = set()
    for verdict in sorted(best, key=lambda verdict: -len(verdict.ranks)):
        if not roots or not named.issuperset(verdict.ranks):
            roots.append(_located(moment, verdict))
            named.update(verdict.ranks)
    return roots


def _located(moment: LastMoment, verdict: Verdict) -> Verdict:
    located = locate(moment.world, verdict)
    return located if moment.is_now else _when_over(located)


def _when_over(verdict: Verdict) -> Verdict:
    """Return a verdict without its deadline, since no timeout is due after the end."""
    return dataclasses.replace(verdict, deadline=None)


def _verdicts(moment: LastMoment, rules: StallRules) -> list[Verdict]:
    world = moment.world
    verdict_on = Judge(world, rules.threshold_ns).verdict_on
    verdicts = _of_stalls(world, rules)
    behind = [verdict_on(operation_id) for operation_id in blocked_by_deaths(world, dict(moment.signs))]
    failed = [verdict_on(operation_id) for operation_id in _interrupted(world)]
    verdicts += [verdict for verdict in (*behind, *failed) if verdict is not None and verdict.kind.traits.is_final]
    # Unseen ranks may have interrupted an operation from which a rank is absent.
    absent = [
        verdict
        for verdict in failed
        if verdict is not None and verdict.kind is VerdictKind.ABSENT and not verdict.roll.silent
    ]
    verdicts += [verdict for verdict in absent if not is_canceled(verdict, world)]
    return verdicts


def stalled_verdict(world: WorldSnapshot, rules: StallRules) -> Verdict | None:
    """Return the verdict on the stall in a snapshot; None if nothing stalled, or if it was expected."""
    return min(_of_stalls(world, rules), key=urgency, default=None)


def _of_stalls(world: WorldSnapshot, rules: StallRules) -> list[Verdict]:
    judge = Judge(world, rules.threshold_ns)
    stalls = [judge.verdict_on(operation_id) for operation_id in _stalled(world, rules)]
    verdicts = [verdict for verdict in stalls if verdict is not None and not is_canceled(verdict, world)]
    return [verdict for verdict in verdicts if not _is_excused(world, verdict, rules)]


def _is_excused(world: WorldSnapshot, verdict: Verdict, rules: StallRules) -> bool:
    """Return whether ranks compile or expect the wait. An expected wait counts from the end of the announcement."""
    lately = dataclasses.replace(world, taken_ns=world.taken_ns - rules.threshold_ns)
    return is_expected(lately, verdict) or CompileExcuses(rules.threshold_ns).excuse(world, verdict)


def _stalled(world: WorldSnapshot, rules: StallRules) -> Iterable[OperationId]:
    """Return the first stalled operation of each channel. Later operations wait for it."""
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
    """Return the operations in which failed ranks were interrupted."""
    failed = [view for view in world.ranks.values() if life_in(view) is RankLife.FAILED]
    return {interrupted.operation_id for view in failed if (interrupted := interrupted_operation(view)) is not None}


@dataclass(frozen=True, slots=True)
class SeenEnd:
    """The conclusions from the recorded deaths of a run's ranks.

    Attributes:
        verdict: The verdict with places; None if no rank held the others up, and none died first.
        at_ns: The moment of the verdict.
        was_hung: Whether the verdict is about a hang that was ended afterwards.
        first: The death that explains the others; None if no rank has died.
    """

    verdict: Verdict | None
    at_ns: int
    was_hung: bool
    first: FirstDeath | None


def seen_end(run_id: int, views: Sequence[RankView], rules: StallRules, now_ns: int) -> SeenEnd | None:
    """Judge a run by the deaths that an agent has recorded; None if it has not recorded all of them.

    Args:
        run_id: Run id.
        views: The run's ranks as they are now.
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
        return SeenEnd(_when_over(locate(before, hung)), died_ns, True, first)
    ends = [view.death.at_ns for view in views if view.death is not None]
    end_ns = now_ns if any(view.alive for view in views) else max(ends)
    after = WorldSnapshot(run_id, end_ns, _by_rank([_gone(view) for view in views]))
    verdict = RootFinder(rules.threshold_ns).find(after, [], None)
    return SeenEnd(_when_over(locate(after, verdict)) if verdict is not None else None, end_ns, False, first)


def _end_of(hung: HungRun) -> SeenEnd:
    return SeenEnd(hung.verdict, hung.world.taken_ns, True, None)


def _by_rank(views: Sequence[RankView]) -> Mapping[int, RankView]:
    return MappingProxyType({view.rank: view for view in views})


def _gone(view: RankView) -> RankView:
    """Return a rank as seen by an agent that watched it die."""
    if view.death is None:
        return view
    at_ns = view.death.at_ns
    return dataclasses.replace(view, gone_since_ns=at_ns, seen_alive_ns=at_ns - 1)


def _alive_at(view: RankView, at_ns: int) -> RankView:
    """Return a rank as it was just before the first death, back in the operation interrupted by that death."""
    death = view.death
    if death is None or life_in(view) is RankLife.FINISHED:
        return view
    interrupted = interrupted_operation(view)
    if view.state is TapeState.FAILED and (interrupted is None or _was_misled(interrupted, at_ns)):
        return dataclasses.replace(view, gone_since_ns=death.at_ns)
    stopped = Stopped(death.stopped, death.stopped_since_ns) if death.stopped else None
    then = dataclasses.replace(
        view, alive=True, gone_since_ns=None, state=TapeState.RUNNING, failure="", stopped=stopped, death=None,
        ran_ns=death.ran_ns,
    )  # fmt: skip
    if interrupted is None or (interrupted.record.completed_ns or 0) < at_ns - DYING_NS:
        return then
    return back_in(then, interrupted)


def _was_misled(failed: OperationView, at_ns: int) -> bool:
    """Return whether a file of an earlier launch made an operation fail, since no rank had died before `at_ns`."""
    return bool(file_left_over(failed)) and (failed.record.completed_ns or 0) < at_ns
