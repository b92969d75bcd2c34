"""The incident of one run: its name, its epochs, and its pending or given verdict, by this or another agent.

There is one incident at a time. Its root is the operation at which the search for the cause ends. Other operations that
stall at the same time are consequences, and have only markers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.stall.events import (
    Event,
    IncidentHandedOver,
    IncidentResolved,
    Occasion,
    Ruling,
    StacksOverdue,
    StacksWanted,
    VerdictGiven,
)
from otel_torchdist.judge.stall.incidents.ages import Numbering, next_doubling
from otel_torchdist.judge.stall.incidents.stacks import (
    CHANGE_SETTLES_NS,
    Pending,
    SnapshotTimes,
    pending_for_death,
    pending_for_departure,
    pending_for_mismatch,
    pending_with_stacks,
    pending_without_stacks,
)
from otel_torchdist.judge.stall.reporting.attributes import ruling_of
from otel_torchdist.judge.verdict.earlier_verdict import names_departed, outcome_of
from otel_torchdist.judge.verdict.rules import Wait
from otel_torchdist.judge.verdict.verdict import Outcome, Verdict, locate
from otel_torchdist.model.ids import lone_run_id
from otel_torchdist.model.reports.incident import Incident, incident_name
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot

MAX_CHANGE_PAUSE_NS: Final = 60_000_000_000


@dataclass(slots=True)
class _Open:
    """The ongoing incident."""

    verdict: Verdict
    reported_ns: int
    changes: int = 0


class RunIncident:
    """The incident of one run: none, pending, ongoing here, or reported by another agent.

    Attributes:
        ruling: This agent's latest ruling on the ongoing incident; None if there is none.
        pending: The verdict about to be given; None if there is none.
        final: This agent's ruling on the last incident, if its ranks ended in it; None otherwise.
    """

    def __init__(self, threshold_ns: int, watching_since_ns: int) -> None:
        """See `Numbering` for `watching_since_ns`."""
        self._threshold_ns = threshold_ns
        self._epochs: Numbering[Incident] = Numbering(watching_since_ns)
        self._incident: Incident | None = None
        self._began_ns = 0
        self._first_epoch = 1
        self._open: _Open | None = None
        self._heard: Ruling | None = None
        self._heard_ns = 0
        self.pending: Pending | None = None
        self.ruling: Ruling | None = None
        self.final: Ruling | None = None

    @property
    def given(self) -> Verdict | None:
        """The verdict on the ongoing incident; None if there is no incident."""
        return self._open.verdict if self._open is not None else None

    @property
    def standing(self) -> Verdict | None:
        """The latest given verdict; before the first, the pending verdict."""
        return self.given or (self.pending.verdict if self.pending is not None else None)

    @property
    def current(self) -> Ruling | None:
        """The latest ruling on the ongoing stall by the judging agent; None if there is none."""
        return self.ruling or self._heard

    def hear(self, ruling: Ruling | None, now_ns: int) -> list[Event]:
        """Leave the incident to another agent, which gave this ruling."""
        events: list[Event] = []
        if self._open is not None and self._incident is not None:
            events.append(IncidentHandedOver(self._incident))
        self._open = self._incident = self.pending = self.ruling = None
        self._heard, self._heard_ns = ruling, now_ns
        return events

    def forget_heard(self) -> None:
        """Record that the incident reported by another agent is over."""
        self._heard = None

    def prepare(
        self,
        world: WorldSnapshot,
        times: SnapshotTimes,
        verdict: Verdict,
        stalled: list[Wait],
        oldest_ns: int,
        agent_id: int,
    ) -> tuple[list[Event], Occasion | None]:
        """Request the stacks that a verdict needs, and wait for them.

        Args:
            world: The snapshot behind the verdict.
            times: The times of the snapshots so far.
            verdict: The verdict.
            stalled: Waits beyond the threshold, the longest first.
            oldest_ns: Age of the oldest of these waits; 0 if there is none.
            agent_id: See `Incident`.

        Returns:
            Requests for stacks, and the occasion on which the verdict can be given now; None if it cannot.
        """
        occasion = self._occasion(verdict, world.taken_ns)
        if occasion is None:
            self.pending = None
            return [], None
        if self._open is None and self._incident is None:
            self._name(world, verdict, stalled, agent_id)
        events: list[Event] = []
        pending = self.pending
        if pending is None or not pending.holds_for(occasion, verdict, world):
            pending = self.pending = self._begin(occasion, verdict, world, stalled, oldest_ns)
            if pending.asked and pending.began_ns == world.taken_ns:
                events.append(StacksWanted(pending.asked))
        overdue = pending.find_overdue(world, times)
        if overdue:
            events.append(StacksOverdue(overdue))
        return events, occasion if pending.is_ready(world) else None

    def _occasion(self, verdict: Verdict, now_ns: int) -> Occasion | None:
        opened = self._open
        if opened is None:
            return Occasion.OPENED
        if not opened.verdict.agrees_with(verdict):
            pause_ns = min(CHANGE_SETTLES_NS << opened.changes, MAX_CHANGE_PAUSE_NS) if opened.changes else 0
            return Occasion.CHANGED if now_ns - opened.reported_ns >= pause_ns else None
        due_ns = next_doubling(self._threshold_ns, opened.reported_ns - self._began_ns)
        return Occasion.GROWN if now_ns - self._began_ns >= due_ns else None

    def _name(self, world: WorldSnapshot, verdict: Verdict, stalled: list[Wait], agent_id: int) -> None:
        """Name the incident by its longest wait. This name is equal in all processes, and independent of the root."""
        operation_id, self._began_ns = verdict.operation_id, verdict.since_ns
        if stalled:
            operation_id, self._began_ns = stalled[0].operation.operation_id, stalled[0].since_ns
        if self._began_ns > self._heard_ns:  # the incident of the other agent is over
            self._heard = None
        heard = self._heard
        name = heard.incident.name if heard is not None else incident_name(operation_id)
        self._incident = Incident(run_of(world), name, agent_id)
        self._first_epoch = self._epochs.following(self._incident, self._began_ns, world.taken_ns)
        if heard is not None:
            self._first_epoch = max(self._first_epoch, heard.epoch + 1)

    def _begin(
        self, occasion: Occasion, verdict: Verdict, world: WorldSnapshot, stalled: list[Wait], oldest_ns: int
    ) -> Pending:
        now = world.taken_ns
        if verdict.kind is VerdictKind.DEAD:
            return pending_for_death(occasion, verdict, world)
        if occasion is Occasion.OPENED and not stalled:
            if verdict.mismatch is not None:
                return pending_for_mismatch(occasion, verdict, world)
            is_departure = names_departed(verdict)
            return (
                pending_for_departure(occasion, verdict, world)
                if is_departure
                else pending_without_stacks(occasion, verdict, now)
            )
        crossed_ns = now
        if occasion is Occasion.OPENED:
            crossed_ns = min(now, now - oldest_ns + self._threshold_ns)
        return pending_with_stacks(occasion, verdict, world, crossed_ns, self.pending)

    def give(self, occasion: Occasion, verdict: Verdict, world: WorldSnapshot) -> VerdictGiven:
        """Give a verdict, with its places."""
        assert self._incident is not None
        incident, now = self._incident, world.taken_ns
        before, epoch = self._epochs.last(incident), self._next_epoch(incident)
        self._epochs.take(incident, epoch, now)
        changes = self._open.changes + (occasion is Occasion.CHANGED) if self._open is not None else 0
        self._open = _Open(verdict, now, changes)
        self.pending = self.final = None
        self.ruling = ruling_of(verdict, incident, epoch, now)
        heard, self._heard = self._heard, None
        predecessor = heard.incident.root(heard.epoch) if heard is not None else None
        return VerdictGiven(occasion, incident, epoch, before, verdict, world, predecessor)

    def last_words(self, world: WorldSnapshot, before: WorldSnapshot | None) -> list[VerdictGiven]:
        """Give a pending verdict on a stall as of its last snapshot, if all waiting ranks have died since."""
        pending = self.pending
        if pending is None or before is None or self._open is not None:
            return []
        if pending.verdict.kind is VerdictKind.DEAD:  # a verdict on a death only waits for the ends of the others
            return []
        waiting = [world.ranks[rank] for rank in pending.verdict.waiting if rank in world.ranks]
        if outcome_of(world, pending.verdict) is not Outcome.RANKS_ENDED or not all(view.is_dead for view in waiting):
            return []
        return [self.give(pending.occasion, locate(before, pending.verdict), before)]

    def drop_pending(self) -> None:
        """Drop a verdict that was about to be given."""
        self.pending = None
        if self._open is None:
            self._incident = None

    def give_at_once(self, verdict: Verdict, world: WorldSnapshot, agent_id: int) -> VerdictGiven:
        """Give a verdict, with its places, on a run that is already over."""
        self.drop_pending()
        if self._incident is None:
            self._name(world, verdict, [], agent_id)
        return self.give(Occasion.OPENED, verdict, world)

    def resolve(self, world: WorldSnapshot, outcome: Outcome, ended_ns: int | None = None) -> IncidentResolved:
        """End the incident, now or at the moment `ended_ns`."""
        assert self._open is not None and self._incident is not None
        incident, now = self._incident, world.taken_ns
        before, epoch = self._epochs.last(incident) or 0, self._next_epoch(incident)
        self._epochs.take(incident, epoch, now)
        verdict = self._open.verdict
        self.final = self.ruling if outcome.ends_ranks else None
        self._open = self._incident = self.pending = self.ruling = None
        return IncidentResolved(outcome, incident, epoch, before, verdict, world, ended_ns or now)

    def ruling_for_markers(self, world: WorldSnapshot, verdict: Verdict) -> Ruling | None:
        """Return the ruling that markers show and link to, possibly before it is given; None without an incident."""
        if self._incident is None:
            return None
        epoch = self._epochs.last(self._incident) or self._next_epoch(self._incident)
        return ruling_of(locate(world, verdict), self._incident, epoch, world.taken_ns)

    def _next_epoch(self, incident: Incident) -> int:
        """Return the next epoch. The first epoch is fixed early, since markers link to its root span in advance."""
        last = self._epochs.last(incident)
        return self._first_epoch if last is None else last + 1


def run_of(world: WorldSnapshot) -> int:
    """Return the run's id. Ranks without a run id yet get a unique id."""
    return world.run or lone_run_id(min(view.nonce for view in world.ranks.values()))
