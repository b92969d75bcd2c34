"""The stall of one run: from the first wait beyond the threshold to the end of the root operation.

There is one incident at a time. Its root is the operation at which the search for the cause ends; other operations
that stall meanwhile are its consequences and show as markers only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_torchdist import semconv
from otel_torchdist.job.requests import FAILURE as ABORTED
from otel_torchdist.naming import lone_run_id
from otel_torchdist.stall.attributes import ruling_of
from otel_torchdist.stall.early_look import EarlyLook
from otel_torchdist.stall.events import (
    Event,
    Incident,
    IncidentHandedOver,
    IncidentResolved,
    MarkerDue,
    Occasion,
    Ruling,
    StacksOverdue,
    StacksWanted,
    VerdictGiven,
)
from otel_torchdist.stall.finding_watch import FindingWatch, incident_name
from otel_torchdist.stall.numbering import MarkerClock, Numbering, next_doubling
from otel_torchdist.stall.pending import CHANGE_SETTLES_NS, Pending, of_death, with_stacks, without_stacks
from otel_torchdist.verdict.compiling import CompileExcuses
from otel_torchdist.verdict.model import Outcome, Verdict, VerdictKind, locate
from otel_torchdist.verdict.roll_call import Standing
from otel_torchdist.verdict.root_cause import RootFinder
from otel_torchdist.verdict.rules import StallRules, Standstill, expects, is_expected
from otel_torchdist.verdict.standing import is_being_ended, outcome_of
from otel_torchdist.verdict.waits import Wait, waits_of
from otel_torchdist.world.model import Channel, OperationId, WorldSnapshot

MAX_CHANGE_PAUSE_NS: Final = 60_000_000_000
ENDLESS_NS: Final = 1 << 62
UNEASY_BEFORE_NS: Final = 1_000_000_000
"""How long before a stall other agents are asked for their ranks, so that these are known when it comes."""


@dataclass(slots=True)
class _Open:
    """The ongoing incident."""

    verdict: Verdict
    told_ns: int
    changes: int = 0


class RunWatch:
    """Watches one run. Pure: takes snapshots, keeps its own state, returns events.

    Attributes:
        seat: Seat of this agent among those that see ranks of the run; 0 if it is the only one.
        ruling: The latest ruling on the ongoing incident; None if there is none.
    """

    def __init__(self, rules: StallRules, watching_since_ns: int) -> None:
        """Watch by these rules; see `Numbering` for `watching_since_ns`."""
        self._rules = rules
        self._threshold_ns = rules.threshold_ns
        self._markers = MarkerClock(rules.threshold_ns, watching_since_ns)
        self._epochs: Numbering[Incident] = Numbering(watching_since_ns)
        self._incident: Incident | None = None
        self._began_ns = 0
        self._first_epoch = 1
        self._open: _Open | None = None
        self._pending: Pending | None = None
        self._spared: dict[tuple[int, int], int] = {}
        self._standstill = Standstill()
        self._expected: set[tuple[int, int]] = set()
        self._roots = RootFinder(rules.threshold_ns)
        self._world: WorldSnapshot | None = None
        self._local: WorldSnapshot | None = None
        self._compiling = CompileExcuses(rules.threshold_ns)
        self._early = EarlyLook(rules.threshold_ns, self._roots, self._compiling)
        self._findings = FindingWatch()
        self._heard: Ruling | None = None
        self._heard_ns = 0
        self.seat = 0
        self.ruling: Ruling | None = None

    @property
    def current(self) -> Ruling | None:
        """The latest ruling on the ongoing stall, by whichever agent judges; None if there is none."""
        return self.ruling or self._heard

    @property
    def own_nonces(self) -> frozenset[int]:
        """Tapes of the run's ranks that this process reads itself, as of the last pass."""
        views = self._world.ranks.values() if self._world is not None else ()
        return frozenset(view.nonce for view in views if not view.is_remote)

    @property
    def stands_still(self) -> bool:
        """Whether no rank of the run showed a sign of life in the last pass; known only to the agent that judges."""
        return self.ruling is not None and self._world is not None and self._standstill.is_on(self._world.taken_ns)

    @property
    def wanted_calls(self) -> frozenset[tuple[Channel, int]]:
        """See `FindingWatch`."""
        return self._findings.wanted_calls

    @property
    def is_hurried(self) -> bool:
        """Whether answers are awaited, so that the next pass should come soon."""
        return self._pending is not None

    def suspects_stall(self, world: WorldSnapshot) -> bool:
        """Whether a stall is ongoing or near, or the end has come, as far as this snapshot of some ranks shows."""
        if self.is_concluding(world) or self._open is not None or any(view.is_dead for view in world.ranks.values()):
            return True
        early_ns = min(UNEASY_BEFORE_NS, self._threshold_ns // 2)
        waits = (wait for wait in waits_of(world) if not expects(wait.view, world))
        return any(self._rules.is_stalled(wait, self._age_ns(wait, world) + early_ns) for wait in waits)

    def is_concluding(self, local: WorldSnapshot | None = None) -> bool:
        """Whether the ranks of this node are over and comparisons are not; see `FindingWatch`."""
        self._local = local or self._local
        return self._rules.compares_calls and self._local is not None and self._findings.is_concluding(self._local)

    def conclude(self, world: WorldSnapshot) -> list[Event]:
        """Make the last pass: compare what can be compared, and report what was found."""
        return self._findings.conclude(world, _run_of(world), self.seat) if self._rules.compares_calls else []

    def follow(self, world: WorldSnapshot, ruling: Ruling | None) -> list[Event]:
        """Process a new snapshot while another agent judges.

        Args:
            world: The ranks that are seen from here.
            ruling: That agent's ruling.
        """
        events: list[Event] = []
        if self._open is not None and self._incident is not None:
            events.append(IncidentHandedOver(self._incident))
        self._open = self._incident = self._pending = self.ruling = None
        self._heard, self._heard_ns = ruling, world.taken_ns
        waits = waits_of(world)
        self._standstill.look(world, waits)
        if ruling is not None:
            stalled = [wait for wait in waits if self._rules.is_stalled(wait, self._age_ns(wait, world))]
            at_once = ruling.attributes.get(semconv.VERDICT) in [kind.value for kind in VerdictKind if kind.is_final]
            here = [wait for wait in waits if at_once and wait.operation.operation_id == ruling.operation_id]
            due = self._markers.due(stalled, world.taken_ns, self._without_marker(here))
            events += [MarkerDue(wait, nth, ruling, world.taken_ns) for wait, nth in due]
        if self._rules.compares_calls:
            self._findings.leave_to_another(world)
            events += self._findings.look_for_stragglers(world, _run_of(world), self.seat)
        self._markers.forget_all_but(waits)
        self._remember(world, waits)
        return events

    def look(self, world: WorldSnapshot) -> list[Event]:
        """Process a new snapshot of the run."""
        events: list[Event] = []
        waits = waits_of(world)
        self._standstill.look(world, waits)
        standing = self._standing_verdict()
        is_ended = standing is not None and is_being_ended(world, standing)
        if is_ended:
            self._roots.death_told()
        if self._open is not None and not _is_waited_for(waits, self._open.verdict.operation_id):
            outcome = Outcome.RANKS_ENDED if is_ended else outcome_of(world, self._open.verdict)
            events.append(self._resolve(world, outcome))
            # Operations that waited behind it get time to proceed before they count as stalls of their own.
            self._spare(waits, world)
        self._spare_while_expected(waits, world)
        stalled = [wait for wait in waits if self._is_stalled(wait, world)]
        verdict = self._roots.find(world, stalled, self._open.verdict if self._open is not None else None)
        if is_ended:
            verdict = standing if self._open is not None or (self._pending is not None and stalled) else None
        if verdict is not None and is_expected(world, verdict):
            self._expected |= {wait.key for wait in stalled}
            self._spare(stalled, world)
            verdict = None
        if _is_being_aborted(world):  # what ranks do now is a consequence of that
            verdict = None
        if verdict is None and not stalled:
            self._heard = None  # what another agent has reported is over
        if verdict is None:
            events += self._last_words(world)
            self._drop_pending()
            events += self._early.look(world, self._soon_stalled(waits, world)) if self._open is None else []
        else:
            events += self._advance(world, verdict, stalled)
            events += self._marker_events(world, verdict, stalled, waits)
        if self._rules.compares_calls:
            cause = self._open.verdict.mismatch if self._open is not None else None
            events += self._findings.look(world, _run_of(world), self.seat, cause)
        self._markers.forget_all_but(waits)
        self._remember(world, waits)
        return events

    def lose_sight(self) -> list[Event]:
        """End the incident: the run's tapes are gone, or belong to another run now."""
        if self._open is None or self._world is None:
            return []
        return [self._resolve(self._world, Outcome.OUT_OF_SIGHT)]

    def _remember(self, world: WorldSnapshot, waits: Iterable[Wait]) -> None:
        self._world = world
        self._spared = {wait.key: self._spared[wait.key] for wait in waits if wait.key in self._spared}

    def _standing_verdict(self) -> Verdict | None:
        """The verdict that was given last, or is about to be given for the first time."""
        if self._open is not None:
            return self._open.verdict
        return self._pending.verdict if self._pending is not None else None

    def _spare_while_expected(self, waits: list[Wait], world: WorldSnapshot) -> None:
        """Count waits that were expected to take long only from the last pass in which they still were."""
        self._expected &= {wait.key for wait in waits}
        expected = [wait for wait in waits if wait.key in self._expected]
        cause = self._roots.find(world, expected, None) if expected else None
        if cause is not None and is_expected(world, cause):
            self._spare(expected, world)

    def _spare(self, stalled: list[Wait], world: WorldSnapshot) -> None:
        """Count the ages of these waits only from now on."""
        self._standstill.forgive(stalled)
        self._spared |= {wait.key: world.taken_ns for wait in stalled}

    def _is_stalled(self, wait: Wait, world: WorldSnapshot) -> bool:
        """Whether a wait is longer than it may be, or its rank's backend has given up."""
        return self._rules.is_stalled(wait, ENDLESS_NS if wait.view.has_given_up else self._age_ns(wait, world))

    def _age_ns(self, wait: Wait, world: WorldSnapshot) -> int:
        """How long a wait has counted; on a remote rank, up to when its agent last saw it alive."""
        seen_ns = min(world.taken_ns, wait.view.seen_alive_ns) if wait.view.is_remote else world.taken_ns
        ran_until_ns = self._standstill.ran_until_ns(seen_ns)
        return ran_until_ns - max(wait.since_ns, self._spared.get(wait.key, 0)) - self._standstill.lost_ns(wait)

    def _soon_stalled(self, waits: list[Wait], world: WorldSnapshot) -> list[Wait]:
        """Waits that have counted for half the threshold."""
        return [
            wait
            for wait in waits
            if 2 * self._age_ns(wait, world) >= self._threshold_ns and not self._rules.is_left_alone(wait)
        ]

    def _oldest_ns(self, stalled: list[Wait], world: WorldSnapshot) -> int | None:
        """The age of the wait that has counted for longest."""
        return max((self._age_ns(wait, world) for wait in stalled), default=None)

    # --- the incident -----------------------------------------------------------------------------------------

    def _advance(self, world: WorldSnapshot, verdict: Verdict, stalled: list[Wait]) -> list[Event]:
        """Advance the incident: ask for stacks, wait for them, give the verdict."""
        occasion = self._occasion(verdict, world.taken_ns)
        if occasion is None:
            self._pending = None
            return []
        if self._open is None and self._incident is None:
            self._name_incident(world, verdict, stalled)
        events: list[Event] = []
        pending = self._pending
        if pending is None or pending.occasion is not occasion or not pending.verdict.says_the_same_as(verdict):
            pending = self._pending = self._begin(occasion, verdict, world, stalled)
            if pending.asked:
                events.append(StacksWanted(pending.asked))
        overdue = pending.find_overdue(world, self._world)
        if overdue:
            events.append(StacksOverdue(overdue))
        if not pending.is_ready(world):
            return events
        if self._open is None and self._compiling.excuse(world, verdict, self._oldest_ns(stalled, world)):
            # All waits, since they began one after the other and are held up by the same ranks.
            self._spare(waits_of(world), world)
            self._drop_pending()
        else:
            events.append(self._give(occasion, locate(world, verdict), world))
        return events

    def _occasion(self, verdict: Verdict, now_ns: int) -> Occasion | None:
        opened = self._open
        if opened is None:
            return Occasion.OPENED
        if not opened.verdict.says_the_same_as(verdict):
            pause_ns = min(CHANGE_SETTLES_NS << opened.changes, MAX_CHANGE_PAUSE_NS) if opened.changes else 0
            return Occasion.CHANGED if now_ns - opened.told_ns >= pause_ns else None
        due_ns = next_doubling(self._threshold_ns, opened.told_ns - self._began_ns)
        return Occasion.GROWN if now_ns - self._began_ns >= due_ns else None

    def _name_incident(self, world: WorldSnapshot, verdict: Verdict, stalled: list[Wait]) -> None:
        """Name it by the longest wait, which stays when the root moves and which another process finds as well."""
        operation_id, self._began_ns = verdict.operation_id, verdict.since_ns
        if stalled:
            operation_id, self._began_ns = stalled[0].operation.operation_id, stalled[0].since_ns
        if self._began_ns > self._heard_ns:  # the incident of the other agent is over
            self._heard = None
        heard = self._heard
        name = heard.incident.name if heard is not None else incident_name(operation_id)
        self._incident = Incident(_run_of(world), name, self.seat)
        self._first_epoch = self._epochs.following(self._incident, self._began_ns, world.taken_ns)
        if heard is not None:
            self._first_epoch = max(self._first_epoch, heard.epoch + 1)

    def _begin(self, occasion: Occasion, verdict: Verdict, world: WorldSnapshot, stalled: list[Wait]) -> Pending:
        now = world.taken_ns
        if verdict.kind is VerdictKind.DEAD:
            return of_death(occasion, verdict, world)
        if occasion is Occasion.OPENED and not stalled:
            return without_stacks(occasion, verdict, now)
        crossed_ns = now
        if occasion is Occasion.OPENED:
            crossed_ns = min(now, now - (self._oldest_ns(stalled, world) or 0) + self._threshold_ns)
        return with_stacks(occasion, verdict, world, crossed_ns, self._pending)

    def _give(self, occasion: Occasion, verdict: Verdict, world: WorldSnapshot) -> VerdictGiven:
        assert self._incident is not None
        incident, now = self._incident, world.taken_ns
        before, epoch = self._epochs.last(incident), self._next_epoch(incident)
        self._epochs.take(incident, epoch, now)
        changes = self._open.changes + (occasion is Occasion.CHANGED) if self._open is not None else 0
        self._open = _Open(verdict, now, changes)
        self._pending = None
        if verdict.kind is VerdictKind.DEAD or verdict.roll.ranks(Standing.DEAD):
            self._roots.death_told()
        self.ruling = ruling_of(verdict, incident, epoch, now)
        heard, self._heard = self._heard, None
        predecessor = heard.incident.root(heard.epoch) if heard is not None else None
        return VerdictGiven(occasion, incident, epoch, before, verdict, world, predecessor)

    def _last_words(self, world: WorldSnapshot) -> list[Event]:
        """Report a stall whose verdict was pending when all ranks in it died, as it was seen while they lived."""
        pending, before = self._pending, self._world
        if pending is None or before is None or self._open is not None:
            return []
        if pending.verdict.kind is VerdictKind.DEAD:  # it was waiting to see what happens to the others
            return []
        waiting = [world.ranks[rank] for rank in pending.verdict.waiting if rank in world.ranks]
        if outcome_of(world, pending.verdict) is not Outcome.RANKS_ENDED or not all(view.is_dead for view in waiting):
            return []
        return [self._give(pending.occasion, locate(before, pending.verdict), before)]

    def _next_epoch(self, incident: Incident) -> int:
        """The next epoch. The first is fixed when the incident is named: markers link to its root before it exists."""
        last = self._epochs.last(incident)
        return self._first_epoch if last is None else last + 1

    def _resolve(self, world: WorldSnapshot, outcome: Outcome) -> IncidentResolved:
        assert self._open is not None and self._incident is not None
        incident, now = self._incident, world.taken_ns
        before, epoch = self._epochs.last(incident) or 0, self._next_epoch(incident)
        self._epochs.take(incident, epoch, now)
        verdict = self._open.verdict
        self._open = self._incident = self._pending = self.ruling = None
        return IncidentResolved(outcome, incident, epoch, before, verdict, world, now)

    def _drop_pending(self) -> None:
        self._pending = None
        if self._open is None:
            self._incident = None

    # --- markers ----------------------------------------------------------------------------------------------

    def _marker_events(
        self, world: WorldSnapshot, verdict: Verdict, stalled: list[Wait], waits: list[Wait]
    ) -> list[Event]:
        early = self._roots.held_up(world, self._without_marker(waits), verdict) if self._open is not None else []
        # Markers belong to traces of steps, which the agent of that rank creates.
        due = self._markers.due((wait for wait in stalled if not wait.view.is_remote), world.taken_ns, early)
        if not due or self._incident is None:
            return []
        epoch = self._epochs.last(self._incident) or self._next_epoch(self._incident)
        ruling = ruling_of(locate(world, verdict), self._incident, epoch, world.taken_ns)
        return [MarkerDue(wait, nth, ruling, world.taken_ns) for wait, nth in due]

    def _without_marker(self, waits: Iterable[Wait]) -> list[Wait]:
        """Waits of this node's ranks that have had no marker and are not ignored."""
        mine = [wait for wait in waits if not wait.view.is_remote and not self._rules.is_left_alone(wait)]
        return [wait for wait in mine if not self._markers.has_marked(wait)]


def _run_of(world: WorldSnapshot) -> int:
    """The run's id; ranks that do not know their run yet get one that no other run has."""
    return world.run or lone_run_id(min(view.nonce for view in world.ranks.values()))


def _is_being_aborted(world: WorldSnapshot) -> bool:
    return any(view.failure == ABORTED for view in world.ranks.values())


def _is_waited_for(waits: Iterable[Wait], operation_id: OperationId) -> bool:
    return any(wait.operation.operation_id == operation_id for wait in waits)
