"""The stall of one run, from the first wait beyond the threshold to the end of the root operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_torchdist.judge.stall.events import (
    Event,
    JudgingAgent,
    MarkerDue,
    Ruling,
    RunSeen,
    TimeoutShort,
    VerdictGiven,
)
from otel_torchdist.judge.stall.findings.idle import IdleFinder
from otel_torchdist.judge.stall.findings.remote_calls import TroubleFinder
from otel_torchdist.judge.stall.findings.watch import FindingWatch, LastingFinder
from otel_torchdist.judge.stall.incidents.ages import MarkerClock, WaitAges
from otel_torchdist.judge.stall.incidents.incident import RunIncident, run_of
from otel_torchdist.judge.stall.incidents.stacks import EarlyStacks, Sight
from otel_torchdist.judge.verdict.compiling import CompileExcuses
from otel_torchdist.judge.verdict.giving_up import backend_of, ends_waits
from otel_torchdist.judge.verdict.past.last_moment import find_hung
from otel_torchdist.judge.verdict.roll_call import GONE
from otel_torchdist.judge.verdict.root_cause import RootFinder
from otel_torchdist.judge.verdict.rules import StallRules, Wait, expects, is_expected, waits_of
from otel_torchdist.judge.verdict.standing import awaits_ends, is_being_ended, outcome_of, timed_out_ns
from otel_torchdist.judge.verdict.verdict import Outcome, Verdict, locate
from otel_torchdist.model.calls import Channel, GroupView, OperationId
from otel_torchdist.model.finding import JudgedWorld
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.rescue import Rescue
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.node.job.requests.commands import FAILURE as ABORTED

SUSPECTS_BEFORE_NS: Final = 1_000_000_000
"""Time in ns before the threshold at which other agents are asked for their ranks, so that they answer in time."""


class RunWatch:
    """Watches one run. It takes snapshots, keeps state, and returns events, without side effects.

    Attributes:
        agent_id: Id of this agent among the agents of the run; 0 if it is the only one.
        judging_agent: The judging agent; None if it is this one.
    """

    def __init__(self, rules: StallRules, watching_since_ns: int) -> None:
        """Watch by these rules; see `Numbering` for `watching_since_ns`."""
        self._rules = rules
        self._ages = WaitAges(rules)
        self._incident = RunIncident(rules.threshold_ns, watching_since_ns)
        self._markers = MarkerClock(rules.threshold_ns, watching_since_ns)
        self._roots = RootFinder(rules.threshold_ns)
        self._compiling = CompileExcuses(rules.threshold_ns)
        self._early = EarlyStacks(rules.threshold_ns, self._roots, self._compiling)
        self._findings = FindingWatch()
        self._timeouts = ShortTimeouts(rules.timeouts_exceed_ns)
        self._lasting: tuple[LastingFinder, ...] = (TroubleFinder(rules.threshold_ns), IdleFinder(rules.idle_ns))
        self._world: WorldSnapshot | None = None
        self._local: WorldSnapshot | None = None
        self._sight = Sight()
        self._is_near = False
        self._over_ns = 0
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
        return RunSeen(self._world, self.current, self._incident.given, self.judging_agent)

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
        return self.is_hurried or is_dying

    def suspects_stall(self, world: WorldSnapshot) -> bool:
        """Return whether a stall is ongoing or near, or a rank has ended, by this snapshot of some ranks."""
        is_ongoing = self._incident.given is not None
        if self.is_concluding(world) or is_ongoing or any(view.is_dead for view in world.ranks.values()):
            return True
        early_ns = min(SUSPECTS_BEFORE_NS, self._rules.threshold_ns // 2)
        waits = (wait for wait in waits_of(world) if not expects(wait.view, world))
        return any(self._rules.is_stalled(wait, self._ages.age_ns(wait, world) + early_ns) for wait in waits)

    def is_concluding(self, local: WorldSnapshot | None = None) -> bool:
        """Return whether the ranks of this node are over but comparisons are not; see `FindingWatch`."""
        self._local = local or self._local
        return self._rules.compares_calls and self._local is not None and self._findings.is_concluding(self._local)

    def conclude(self, world: WorldSnapshot) -> list[Event]:
        """Make the last pass: compare all remaining data and report the findings."""
        return [*self._findings.conclude(self._judged(world))] if self._rules.compares_calls else []

    def follow(self, world: WorldSnapshot, ruling: Ruling | None) -> list[Event]:
        """Process a new snapshot while another agent judges.

        Args:
            world: The ranks seen from here.
            ruling: The judging agent's ruling.
        """
        events = self._incident.hear(ruling, world.taken_ns)
        self._sight.note(world.taken_ns)
        waits = waits_of(world)
        self._ages.observe(world, waits)
        if ruling is not None:
            stalled = [wait for wait in waits if self._rules.is_stalled(wait, self._ages.age_ns(wait, world))]
            at_once = ruling.kind is not None and ruling.kind.traits.is_final
            here = [wait for wait in waits if at_once and wait.operation.operation_id == ruling.operation_id]
            due = self._markers.due(stalled, world.taken_ns, self._without_marker(here))
            events += [MarkerDue(wait, nth, ruling, world.taken_ns) for wait, nth in due]
        if self._rules.compares_calls:
            self._findings.leave_to_another(world)
            events += self._findings.find_stragglers(self._judged(world))
        self._remember(world, waits)
        return events

    def judge(self, world: WorldSnapshot) -> list[Event]:
        """Process a new snapshot of the run."""
        short = self._timeouts.check(world)
        for timeout in short:
            self._early.precede(timeout.group.name.timeout_ms * 1_000_000)
        events: list[Event] = [*short]
        self._sight.note(world.taken_ns)
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
        if self._rules.compares_calls:
            cause = incident.given.mismatch if incident.given is not None else None
            events += self._findings.compare(self._judged(world), cause)
        for finder in self._lasting:
            events += finder.report(self._judged(world))
        self._remember(world, waits)
        return events

    def _report_given_up(self, world: WorldSnapshot) -> list[Event]:
        """Report the waits that ranks gave up before the threshold immediately, since they explain the ends."""
        hung = find_hung(world, self._rules.threshold_ns) if not self._roots.is_death_reported else None
        if hung is None:
            return []
        self._roots.mark_death_reported()
        if self._incident.given is not None or hung.given_up[0].at_ns <= self._over_ns:
            return []
        return [self._note(self._incident.give_at_once(hung.verdict, hung.world, self.agent_id))]

    def _resolve(self, world: WorldSnapshot, given: Verdict, is_ended: bool) -> Event:
        at_ns = timed_out_ns(world, given)
        self._over_ns = world.taken_ns
        if at_ns is not None:
            return self._incident.resolve(world, Outcome.FAILED, at_ns)
        return self._incident.resolve(world, Outcome.RANKS_ENDED if is_ended else outcome_of(world, given))

    def _judged(self, world: WorldSnapshot) -> JudgedWorld:
        return JudgedWorld(world, run_of(world), self.agent_id)

    def lose_sight(self) -> list[Event]:
        """End the incident, because the run's tapes are gone or now belong to another run."""
        if self._incident.given is None or self._world is None:
            return []
        return [self._incident.resolve(self._world, Outcome.OUT_OF_SIGHT)]

    def _remember(self, world: WorldSnapshot, waits: list[Wait]) -> None:
        self._markers.forget_all_but(waits)
        self._ages.forget_all_but(waits)
        self._is_near = bool(self._ages.soon_stalled(waits, world))
        self._world = world

    def _spare_while_expected(self, waits: list[Wait], world: WorldSnapshot) -> None:
        """Count waits that were expected to be long only from the last pass in which they were expected."""
        expected = self._ages.once_expected(waits)
        cause = self._roots.find(world, expected, None) if expected else None
        if cause is not None and is_expected(world, cause):
            self._ages.spare(expected, world)

    def _advance(self, world: WorldSnapshot, verdict: Verdict, stalled: list[Wait]) -> list[Event]:
        """Advance the incident: request stacks, wait for them, give the verdict."""
        incident, oldest_ns = self._incident, self._ages.oldest_ns(stalled, world)
        events, occasion = incident.prepare(world, self._sight, verdict, stalled, oldest_ns or 0, self.agent_id)
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
        """Remember that a verdict has explained deaths, the exceptions of all members, or a finding."""
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
        mine = [wait for wait in waits if not wait.view.is_remote and not self._rules.is_left_alone(wait)]
        return [wait for wait in mine if not self._markers.has_marked(wait)]


def _is_being_aborted(world: WorldSnapshot) -> bool:
    return any(view.failure == ABORTED for view in world.ranks.values())


def _is_waited_for(waits: Iterable[Wait], operation_id: OperationId) -> bool:
    return any(wait.operation.operation_id == operation_id for wait in waits)


# --- short timeouts ---------------------------------------------------------------------------------------------------
# Warns of groups whose backend may end a stall before it is reported and acted on.


class ShortTimeouts:
    """Checks the groups of one run until the first timeout that is too short."""

    def __init__(self, needed_ns: int) -> None:
        """Report timeouts no longer than `needed_ns`."""
        self._needed_ns = needed_ns
        self._seen: dict[int, Mapping[str, GroupView]] = {}
        self._has_reported = False

    def check(self, world: WorldSnapshot) -> list[TimeoutShort]:
        """Check the groups that are new since the last pass."""
        if self._has_reported:
            return []
        for view in world.ranks.values():
            if self._seen.get(view.nonce) is view.groups:  # a new group makes a new mapping
                continue
            self._seen[view.nonce] = view.groups
            short = [group for group in view.groups.values() if self._is_short(group)]
            if short:
                self._has_reported = True
                self._seen.clear()
                group = min(short, key=lambda group: group.name.timeout_ms)
                return [TimeoutShort(world.run, group, backend_of(group.name), self._needed_ns)]
        return []

    def _is_short(self, group: GroupView) -> bool:
        name = group.name
        return 0 < name.timeout_ms * 1_000_000 <= self._needed_ns and ends_waits(name.at_timeout)
