"""A detector with peer agents on other nodes, whose answers the test chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from otel_torchdist import semconv
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.incident import Incident
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.stall.events import Ruling, StacksOverdue, StacksWanted
from otel_torchdist.stall.peer_agents import Follows, Leads, Role
from otel_torchdist.stall.watch import Detector
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, FakeWorld
from tests.support.worlds.watched_world import RULES, Watching, stalled

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
