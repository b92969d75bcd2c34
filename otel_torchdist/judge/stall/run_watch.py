"""The stall of one run, from the first wait beyond the threshold to the end of the root operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_torchdist.judge.stall.events import (
    Event,
    JudgingAgent,
    MarkerDue,
    RecordingSwitchedOff,
    Ruling,
    RunSeen,
    VerdictGiven,
)
from otel_torchdist.judge.stall.findings.idle import IdleFinder
from otel_torchdist.judge.stall.findings.remote_calls import TroubleFinder
from otel_torchdist.judge.stall.findings.watch import FindingWatch, LastingFinder
from otel_torchdist.judge.stall.incidents.ages import MarkerClock, WaitAges
from otel_torchdist.judge.stall.incidents.incident import RunIncident, run_of
from otel_torchdist.judge.stall.incidents.stacks import EarlyStacks, SnapshotTimes
from otel_torchdist.judge.stall.short_timeouts import ShortTimeouts
from otel_torchdist.judge.verdict.compiling import CompileExcuses
from otel_torchdist.judge.verdict.earlier_verdict import awaits_ends, is_being_ended, outcome_of, timed_out_ns
from otel_torchdist.judge.verdict.past.last_moment import find_hung
from otel_torchdist.judge.verdict.roll_call import GONE
from otel_torchdist.judge.verdict.root_cause import RootFinder
from otel_torchdist.judge.verdict.rules import StallRules, Wait, expects, is_expected, waits_of
from otel_torchdist.judge.verdict.verdict import Outcome, Verdict, locate
from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.rank_state.rescue import Rescue
from otel_torchdist.model.reports.finding import JudgedWorld
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.node.job.requests.commands import FAILURE as ABORTED

SUSPECTS_BEFORE_NS: Final = 1_000_000_000
"""Time in ns before the threshold at which other agents are asked for their ranks, so that they answer in time."""
REPORTS_SWITCH_NS: Final = 5_000_000_000
"""Time in ns for which an agent stays after recording was switched off, so that the agents of other nodes hear of it:
their ranks may wait for ranks of this node, and nobody would know why."""


class RunWatch:
    """Watches one run. It takes snapshots, keeps state, and returns events, without side effects.

    Attributes:
        agent_id: Id of this agent among the agents of the run; 0 if it is the only one.
        judging_agent: The judging agent; None if it is this one.
        off_elsewhere_wall_ns: When recording was switched off on a node whose agent may have left, in ns since the
            epoch; 0 if it was not.
    """

    def __init__(self, rules: StallRules, watching_since_ns: int) -> None:
        """Watch a run by these rules; see `Numbering` for `watching_since_ns`."""
        self._rules = rules
        self._ages = WaitAges(rules)
        self._incident = RunIncident(rules.threshold_ns, watching_since_ns)
        self._markers = MarkerClock(rules.threshold_ns, watching_since_ns)
        self._roots = RootFinder(rules.threshold_ns)
        self._compiling = CompileExcuses(rules.threshold_ns)
        self._early = EarlyStacks(rules.threshold_ns, self._roots, self._compiling)
        self._findings = FindingWatch(rules.compares_calls)
        self._timeouts = ShortTimeouts(rules.timeouts_exceed_ns)
        self._lasting: tuple[LastingFinder, ...] = (
            TroubleFinder(rules.threshold_ns),
            IdleFinder(rules.idle_ns),
        )
        self._world: WorldSnapshot | None = None
        self._local: WorldSnapshot | None = None
        self._times = SnapshotTimes()
        self._is_near = False
        self._resolved_ns = 0
        self._is_switched_off = False
        self._reports_switch_until_ns = 0
        self.off_elsewhere_wall_ns = 0
        self.agent_id = 0
        self.judging_agent: JudgingAgent | None = None
        self.rescues_elsewhere: Mapping[int, Rescue] = {}

    @property
    def ruling(self) -> Ruling | None:
        """This agent's latest ruling on the ongoing incident; None if there is none."""
        return self._incident.ruling

    @property
    def current(self) -> Ruling | None:
        """The latest ruling on the ongoing stall by the judging agent; None if there is none."""
        return self._incident.current

    @property
    def seen(self) -> RunSeen | None:
        """The run as of the last pass; None before the first."""
        if self._world is None:
            return None
        return RunSeen(self._world, self.current, self._incident.given, self.judging_agent, self._incident.final)

    @property
    def own_nonces(self) -> frozenset[int]:
        """Tapes of the run's ranks read by this process, as of the last pass."""
        views = self._world.ranks.values() if self._world is not None else ()
        return frozenset(view.nonce for view in views if not view.is_remote)

    @property
    def rescues(self) -> Mapping[int, Rescue]:
        """Progress of the rescue by rank, as of the last pass or as reported by the judging agent."""
        return {**self.rescues_elsewhere, **(self._world.rescues if self._world is not None else {})}

    @property
    def stands_still(self) -> bool:
        """Whether no rank of the run showed a sign of life in the last pass. Known only to the judging agent."""
        return self.ruling is not None and self._world is not None and self._ages.stands_still(self._world.taken_ns)

    @property
    def wanted_calls(self) -> frozenset[tuple[Channel, int]]:
        """See `FindingWatch`."""
        return self._findings.wanted_calls

    @property
    def is_hurried(self) -> bool:
        """Whether ranks have been asked for stacks, so that the next pass should come soon."""
        return self._incident.pending is not None

    @property
    def is_urgent(self) -> bool:
        """Whether a verdict may be due soon: a verdict is pending, or the age of a wait is half the threshold."""
        return self.is_hurried or self._is_near

    @property
    def awaits_last_verdict(self) -> bool:
        """Whether, with no tape of this node in use, a verdict is still pending or a rank's process still running."""
        views = self._world.ranks.values() if self._world is not None else ()
        is_dying = any(view.alive and not view.is_remote and view.state is TapeState.RUNNING for view in views)
        return self.is_hurried or (is_dying and not self._is_switched_off)

    def suspects_stall(self, world: WorldSnapshot) -> bool:
        """Return whether a stall is ongoing or near, or a rank has ended, by this snapshot of some ranks."""
        if self._is_switched_off:
            return self.is_concluding(world)  # hurried agents hear of the switch at once
        is_ongoing = self._incident.given is not None
        if self.is_concluding(world) or is_ongoing or any(view.is_dead for view in world.ranks.values()):
            return True
        early_ns = min(SUSPECTS_BEFORE_NS, self._rules.threshold_ns // 2)
        waits = (wait for wait in waits_of(world) if not expects(wait.view, world))
        return any(self._rules.is_stalled(wait, self._ages.age_ns(wait, world) + early_ns) for wait in waits)

    def is_concluding(self, local: WorldSnapshot | None = None) -> bool:
        """Return whether all ranks of this node have ended, but are still compared; see `FindingWatch`."""
        self._local = local or self._local
        if self._is_switched_off:
            return self._local is not None and self._local.taken_ns < self._reports_switch_until_ns
        return self._local is not None and self._findings.is_concluding(self._local)

    def conclude(self, world: WorldSnapshot) -> list[Event]:
        """Make the last pass: compare all remaining data and report the findings."""
        if self._is_switched_off:
            return []
        return [*self._findings.conclude(self._judged(world))]

    def follow(self, world: WorldSnapshot, ruling: Ruling | None) -> list[Event]:
        """Process a new snapshot while another agent judges.

        Args:
            world: The ranks seen by this agent.
            ruling: The judging agent's ruling.
        """
        if self._is_switched_off or world.switched_off_ns or self.off_elsewhere_wall_ns:
            return self._leave_unjudged(world)
        events = self._incident.hear(ruling, world.taken_ns)
        self._times.note(world.taken_ns)
        waits = waits_of(world)
        self._ages.observe(world, waits)
        if ruling is not None:
            stalled = [wait for wait in waits if self._rules.is_stalled(wait, self._ages.age_ns(wait, world))]
            at_once = ruling.kind is not None and ruling.kind.traits.is_final
            at_root = [wait for wait in waits if at_once and wait.operation.operation_id == ruling.operation_id]
            due = self._markers.due(stalled, world.taken_ns, self._without_marker(at_root))
            events += [MarkerDue(wait, nth, ruling, world.taken_ns) for wait, nth in due]
        self._findings.leave_to_another(world)
        events += self._findings.find_stragglers(self._judged(world))
        self._remember(world, waits)
        return events

    def judge(self, world: WorldSnapshot) -> list[Event]:
        """Process a new snapshot of the run."""
        if self._is_switched_off or world.switched_off_ns or self.off_elsewhere_wall_ns:
            return self._leave_unjudged(world)
        short = self._timeouts.check(world)
        for timeout in short:
            self._early.precede(timeout.group.name.timeout_ms * 1_000_000)
        events: list[Event] = [*short]
        self._times.note(world.taken_ns)
        waits, incident = waits_of(world), self._incident
        self._ages.observe(world, waits)
        world = self._ages.with_announcements(world)
        events += self._report_given_up(world)
        standing = incident.standing
        is_ended = standing is not None and is_being_ended(world, standing)
        if is_ended:
            self._roots.mark_death_reported()
        given = incident.given
        is_over = given is not None and not _is_waited_for(waits, given.operation_id)
        is_held = given is not None and is_over and awaits_ends(world, given)
        if given is not None and is_over and not is_held:
            events.append(self._resolve(world, given, is_ended))
            # Operations that waited for the resolved one get time to proceed before they count as new stalls.
            self._ages.spare(waits, world)
        self._spare_while_expected(waits, world)
        stalled = self._ages.stalled(waits, world)
        verdict = self._roots.find(world, stalled, incident.given)
        if is_ended:
            is_standing = incident.given is not None or (incident.pending is not None and stalled)
            verdict = standing if is_standing else None
        if is_held:  # the verdict stands until the other ranks' ends are known
            verdict = None
        if verdict is not None and is_expected(world, verdict):
            self._ages.spare_expected(stalled, world)
            verdict = None
        if _is_being_aborted(world):  # from now on the ranks' actions are consequences of the abort
            verdict = None
        if verdict is None and not stalled:
            incident.forget_heard()
        if verdict is None:
            events += self._last_words(world)
            incident.drop_pending()
            if incident.given is None:
                events += self._early.request(world, self._ages.soon_stalled(waits, world))
        else:
            events += self._advance(world, verdict, stalled)
            events += self._marker_events(world, verdict, stalled, waits)
        cause = incident.given.mismatch if incident.given is not None else None
        events += self._findings.compare(self._judged(world), cause)
        for finder in self._lasting:
            events += finder.report(self._judged(world))
        self._remember(world, waits)
        return events

    def _leave_unjudged(self, world: WorldSnapshot) -> list[Event]:
        """Judge nothing: recording is switched off in a rank. The agent that has seen it may not answer any more."""
        events: list[Event] = []
        if not self._is_switched_off:
            self._is_switched_off = True
            self._reports_switch_until_ns = world.taken_ns + REPORTS_SWITCH_NS
            self._incident.drop_pending()
            events += self.lose_sight()
            events.append(RecordingSwitchedOff(world.run, world.switched_off_wall_ns or self.off_elsewhere_wall_ns))
        self._remember(world, [])
        return events

    def _report_given_up(self, world: WorldSnapshot) -> list[Event]:
        """Report waits that ranks gave up, even before the threshold, because they explain why the ranks ended."""
        hung = find_hung(world, self._rules.threshold_ns) if not self._roots.is_death_reported else None
        if hung is None:
            return []
        self._roots.mark_death_reported()
        if self._incident.given is not None or hung.given_up[0].at_ns <= self._resolved_ns:
            return []
        return [self._note(self._incident.give_at_once(hung.verdict, hung.world, self.agent_id))]

    def _resolve(self, world: WorldSnapshot, given: Verdict, is_ended: bool) -> Event:
        at_ns = timed_out_ns(world, given)
        self._resolved_ns = world.taken_ns
        if at_ns is not None:
            return self._incident.resolve(world, Outcome.FAILED, at_ns)
        return self._incident.resolve(world, Outcome.RANKS_ENDED if is_ended else outcome_of(world, given))

    def _judged(self, world: WorldSnapshot) -> JudgedWorld:
        return JudgedWorld(world, run_of(world), self.agent_id)

    def lose_sight(self, others: Iterable[WorldSnapshot] = ()) -> list[Event]:
        """End the incident, because the run's tapes are gone or now belong to another run.

        Args:
            others: The other runs. While ranks create their first group, they have no run id; with it, they are in one.
        """
        given, world = self._incident.given, self._world
        if given is None or world is None:
            return []
        waiting = {world.ranks[rank].nonce for rank in given.roll.waits if rank in world.ranks}
        with_them = (other for other in others if waiting <= {view.nonce for view in other.ranks.values()})
        successor = next(with_them, None) if waiting else None
        outcome = outcome_of(successor, given) if successor is not None else Outcome.OUT_OF_SIGHT
        return [self._incident.resolve(world, outcome)]

    def _remember(self, world: WorldSnapshot, waits: list[Wait]) -> None:
        self._markers.forget_all_but(waits)
        self._ages.forget_all_but(waits)
        self._is_near = bool(self._ages.soon_stalled(waits, world))
        self._world = world

    def _spare_while_expected(self, waits: list[Wait], world: WorldSnapshot) -> None:
        """Restart the ages of expected waits, so that they count from the last pass in which they were expected."""
        expected = self._ages.still_expected(waits)
        cause = self._roots.find(world, expected, None) if expected else None
        if cause is not None and is_expected(world, cause):
            self._ages.spare(expected, world)

    def _advance(self, world: WorldSnapshot, verdict: Verdict, stalled: list[Wait]) -> list[Event]:
        """Advance the incident: request stacks, wait for them, give the verdict."""
        incident, oldest_ns = self._incident, self._ages.oldest_ns(stalled, world)
        events, occasion = incident.prepare(world, self._times, verdict, stalled, oldest_ns or 0, self.agent_id)
        if occasion is None:
            return events
        if incident.given is None and self._compiling.excuse(world, verdict, oldest_ns):
            # Spare all waits: the same ranks hold them up, although they began one after the other.
            self._ages.spare(waits_of(world), world)
            incident.drop_pending()
            return events
        return [*events, self._note(incident.give(occasion, locate(world, verdict), world))]

    def _last_words(self, world: WorldSnapshot) -> list[Event]:
        return [self._note(given) for given in self._incident.last_words(world, self._world)]

    def _note(self, given: VerdictGiven) -> VerdictGiven:
        """Record that a verdict has explained deaths, the exceptions of all members, or a finding, and return it."""
        self._findings.explained(given.verdict)
        members = [given.world.ranks[rank] for rank in given.verdict.roll.standings if rank in given.world.ranks]
        has_deaths = given.verdict.kind is VerdictKind.DEAD or given.verdict.roll.ranks(*GONE)
        if has_deaths or all(view.is_over for view in members):
            self._roots.mark_death_reported()
        return given

    def _marker_events(
        self, world: WorldSnapshot, verdict: Verdict, stalled: list[Wait], waits: list[Wait]
    ) -> list[Event]:
        is_given = self._incident.given is not None
        early = self._roots.held_up(world, self._without_marker(waits), verdict) if is_given else []
        # Markers belong to the traces of steps, which the agent of that rank creates.
        due = self._markers.due((wait for wait in stalled if not wait.view.is_remote), world.taken_ns, early)
        ruling = self._incident.ruling_for_markers(world, verdict) if due else None
        if ruling is None:
            return []
        return [MarkerDue(wait, nth, ruling, world.taken_ns) for wait, nth in due]

    def _without_marker(self, waits: Iterable[Wait]) -> list[Wait]:
        """Return waits of this node's ranks that have no marker and are not ignored."""
        mine = [wait for wait in waits if not wait.view.is_remote and not self._rules.is_ignored(wait)]
        return [wait for wait in mine if not self._markers.has_marked(wait)]


def _is_being_aborted(world: WorldSnapshot) -> bool:
    return any(view.failure == ABORTED for view in world.ranks.values())


def _is_waited_for(waits: Iterable[Wait], operation_id: OperationId) -> bool:
    return any(wait.operation.operation_id == operation_id for wait in waits)
