"""Detectors that poll simulated worlds on a clock of their own, alone or with agents of other nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from otel_torchdist.judge.stall.events import (
    Event,
    Follows,
    IncidentResolved,
    Leads,
    MarkerDue,
    Role,
    Ruling,
    StacksOverdue,
    StacksWanted,
    VerdictGiven,
)
from otel_torchdist.judge.stall.watch import Detector
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from otel_torchdist.model.reports.incident import Incident
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.telemetry import semconv
from tests.support.worlds.fake_world import FIRST_NONCE, RUN, SECOND, START_NS, FakeWorld, group_of

if TYPE_CHECKING:
    from typing_extensions import Self

EVERYBODY = group_of(0, 1, 2, 3, description="default_pg")
THRESHOLD_S = 10.0
RULES = StallRules(round(THRESHOLD_S * SECOND))
LOAD_BATCH = CallSiteName("load_batch", "/home/user/train.py", 57)
STACK = ThreadStack(100, "MainThread", (CallSiteName("sleep", "/usr/lib/python3.11/time.py", 1), LOAD_BATCH))


class Watching:
    """A detector, a world and a clock that advances in steps chosen by the detector.

    Attributes:
        events: What was reported, with the time in seconds.
        answers_after_s: How long ranks take to write their stacks; None when they never do.
    """

    def __init__(
        self,
        world: FakeWorld,
        answers_after_s: float | None = 0.6,
        began_s: float = 0.0,
        ignored: Sequence[str] = (),
        stack: ThreadStack = STACK,
        stacks: Mapping[int, tuple[ThreadStack, ...]] | None = None,
    ) -> None:
        """Begin; ranks have the stacks in `stacks`, or else one thread with `stack`."""
        self.world = world
        self.answers_after_s = answers_after_s
        rules = dataclasses.replace(RULES, ignored=tuple(ignored))
        self.detector = Detector(rules, START_NS + round(began_s * SECOND))
        self.stack = stack
        self.stacks = stacks or {}
        self.earlier_s: dict[int, float] = {}
        self.now_s = began_s
        self.asked_s: dict[int, float] = {}
        self.events: list[tuple[float, Event]] = []

    def poll(self) -> list[Event]:
        """Poll now."""
        found = self.detector.process([self.snapshot()])
        for event in found:
            if isinstance(event, StacksWanted):
                answered = event.nonces & self.asked_s.keys()
                self.earlier_s |= {nonce: self.asked_s[nonce] for nonce in answered if self._has_answered(nonce)}
                self.asked_s |= dict.fromkeys(event.nonces, self.now_s)
        self.events += [(self.now_s, event) for event in found]
        return found

    def until(self, then_s: float) -> Self:
        """Poll as often as the detector asks; returns itself."""
        while self.now_s < then_s:
            self.now_s = min(self.now_s + self.detector.next_check_s, then_s)
            self.poll()
        return self

    def snapshot(self) -> WorldSnapshot:
        """The world now, with the stacks that ranks have written."""
        snapshot = self.world.snapshot(self.now_s)
        views = {
            rank: dataclasses.replace(view, stacks=self.stacks_of(view.nonce)) for rank, view in snapshot.ranks.items()
        }
        return dataclasses.replace(snapshot, ranks=views)

    def stacks_of(self, nonce: int) -> Stacks | None:
        """The request for the stacks of the rank with this nonce, and its answer; None if it was not asked."""
        asked_s = self.asked_s.get(nonce)
        if asked_s is None:
            return None
        threads = self.stacks.get(nonce - FIRST_NONCE, (self.stack,))
        asked_ns = START_NS + round(asked_s * SECOND)
        if self._has_answered(nonce):
            return Stacks(asked_ns, threads)
        earlier_s = self.earlier_s.get(nonce)
        if earlier_s is None:
            return Stacks(asked_ns, None)
        return Stacks(asked_ns, None, earlier=threads, earlier_ns=START_NS + round(earlier_s * SECOND))

    def _has_answered(self, nonce: int) -> bool:
        return self.answers_after_s is not None and self.now_s >= self.asked_s[nonce] + self.answers_after_s

    @property
    def reported(self) -> list[tuple[float, Event]]:
        """What was reported, without the requests for stacks, which ranks may get whenever others wait."""
        return [(at_s, event) for at_s, event in self.events if not isinstance(event, StacksWanted)]

    @property
    def verdicts(self) -> list[tuple[float, VerdictGiven]]:
        """The verdicts given."""
        return [(at_s, event) for at_s, event in self.events if isinstance(event, VerdictGiven)]

    @property
    def ends(self) -> list[tuple[float, IncidentResolved]]:
        """The incidents resolved."""
        return [(at_s, event) for at_s, event in self.events if isinstance(event, IncidentResolved)]

    def markers(self, rank: int) -> list[MarkerDue]:
        """The markers of one rank."""
        found = [event for _, event in self.events if isinstance(event, MarkerDue)]
        return [marker for marker in found if marker.wait.view.rank == rank]


def stalled(late: int = 2, since_s: float = 5.0) -> tuple[FakeWorld, dict[int, int]]:
    """All ranks but one are in an all_reduce; their operations by rank."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    return world, {rank: world.ranks[rank].enter(EVERYBODY, since_s) for rank in range(4) if rank != late}


LOCAL = (0, 1)
"""Ranks on the node whose detector is tested, if there are other nodes."""


class ChosenAnswers:
    """Peer agents that give the detector the answers that the test wants.

    Attributes:
        role: Returns the answer, given what the detector sees by itself.
        suspects_stall: Whether the detector suspected a stall, at each poll.
        published: What was published about the run, at each poll at which this agent led.
    """

    def __init__(self, role: Callable[[WorldSnapshot], Role]) -> None:
        self.role = role
        self.suspects_stall: list[bool] = []
        self.published: list[Ruling | None] = []

    def meet(self, world: WorldSnapshot, suspects_stall: bool) -> Role:
        """See `PeerAgents`."""
        self.suspects_stall.append(suspects_stall)
        return self.role(world)

    def publish(self, run: int, ruling: Ruling | None) -> None:
        """See `PeerAgents`."""
        assert run == RUN
        self.published.append(ruling)

    def want_calls(self, run: int, windows: frozenset[tuple[Channel, int]]) -> None:
        """See `PeerAgents`; no calls differ here."""
        assert windows == frozenset()

    def request_stacks(self, wanted: StacksWanted | StacksOverdue) -> None:
        """See `PeerAgents`; the detector's owner does that."""
        raise AssertionError(wanted)

    def requested_stacks(self) -> list[StacksWanted | StacksOverdue]:
        """See `PeerAgents`; the detector's owner does that."""
        raise AssertionError


class Accompanied(Watching):
    """A detector with peer agents."""

    def __init__(
        self,
        world: FakeWorld,
        role: Callable[[WorldSnapshot], Role],
        began_s: float = 0,
        only: Collection[int] | None = None,
    ) -> None:
        super().__init__(world, began_s=began_s)
        self.only = range(len(world.ranks)) if only is None else only
        self.peer_agents = ChosenAnswers(role)
        self.detector = Detector(RULES, START_NS + round(began_s * SECOND), self.peer_agents)

    def snapshot(self) -> WorldSnapshot:
        """The snapshot of this agent's own ranks."""
        snapshot = super().snapshot()
        return dataclasses.replace(snapshot, ranks={rank: snapshot.ranks[rank] for rank in self.only})


def follows(ruling: Ruling | None, is_hurried: bool = False) -> Callable[[WorldSnapshot], Role]:
    """Another agent leads, with this ruling."""
    return lambda world: Follows(ruling, is_hurried)


def a_ruling(epoch: int = 3, of: int = 0) -> Ruling:
    """Another agent's ruling on the stalled world."""
    world, numbers = stalled()
    operation_id = world.ranks[0].open[numbers[0]].operation_id
    found = {semconv.VERDICT: "absent"}
    return Ruling(Incident(RUN, "what they named it", of), epoch, operation_id, "rank 2 sleeps", found)


def with_others(world: FakeWorld) -> Callable[[WorldSnapshot], Role]:
    """This agent leads; ranks that are not local are seen by another one."""

    def leads(seen: WorldSnapshot) -> Role:
        now_s = (seen.taken_ns - START_NS) / SECOND
        there = world.snapshot(now_s, [rank for rank in range(len(world.ranks)) if rank not in seen.ranks])
        remote = {rank: dataclasses.replace(view, is_remote=True) for rank, view in there.ranks.items()}
        return Leads(dataclasses.replace(seen, ranks={**seen.ranks, **remote}))

    return leads
