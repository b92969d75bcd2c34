"""Interface to the agents of other nodes that see ranks of the same run; one of them judges for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from otel_torchdist.model.calls import Channel
from otel_torchdist.model.rescue import Rescue
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.stall.events import Ruling, StacksOverdue, StacksWanted
from otel_torchdist.verdict.model import Verdict


@dataclass(frozen=True, slots=True)
class JudgingAgent:
    """Another agent, which judges.

    Attributes:
        node: Its node's name; '' while that is not known.
        page: Address of its live page; '' if it serves none, or has not said.
    """

    node: str
    page: str


@dataclass(frozen=True, slots=True)
class Leads:
    """This agent judges.

    Attributes:
        world: All ranks that any agent sees.
        agent_id: This agent's id; see `Incident`.
    """

    world: WorldSnapshot
    agent_id: int = 0


@dataclass(frozen=True, slots=True)
class Follows:
    """Another agent judges.

    Attributes:
        ruling: Its ruling on the ongoing stall; None if there is none.
        is_hurried: Whether it asks at short intervals.
        judge: That agent.
        rescues: How far the rescue of each rank has come, as it has last said; empty if none has begun.
    """

    ruling: Ruling | None
    is_hurried: bool = False
    judge: JudgingAgent = field(default=JudgingAgent("", ""), compare=False)
    rescues: Mapping[int, Rescue] = field(default_factory=dict[int, Rescue])


@dataclass(frozen=True, slots=True)
class Undecided:
    """The peers have been asked, and have not answered yet."""


Role: TypeAlias = Leads | Follows | Undecided


class PeerAgents(Protocol):
    """The agents that see ranks of the same runs. No method blocks."""

    def meet(self, world: WorldSnapshot, suspects_stall: bool) -> Role:
        """Share what is seen here with the peers, and learn which agent judges.

        Args:
            world: The local ranks of a run.
            suspects_stall: Whether a stall is ongoing or near.
        """
        ...

    def publish(self, run: int, ruling: Ruling | None) -> None:
        """Send the current ruling on a run to the peers; None if there is none."""
        ...

    def want_calls(self, run: int, windows: frozenset[tuple[Channel, int]]) -> None:
        """Request these windows of calls in full from the peers, as long as they have them."""
        ...

    def request_stacks(self, wanted: StacksWanted | StacksOverdue) -> None:
        """Pass on which ranks should write their stacks."""
        ...

    def requested_stacks(self) -> list[StacksWanted | StacksOverdue]:
        """Requests of peers for stacks of ranks that are seen here, each once."""
        ...


# --- What a reader sees of a run after a pass, for pages that show it while it runs. Frozen data only -----------------


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One run, as of the last pass.

    Attributes:
        world: The ranks that are seen here: those of all nodes if this agent judges.
        ruling: The latest ruling on the ongoing stall, by whichever agent judges; None if there is none.
        verdict: This agent's verdict on it, which the ruling puts into words; None if there is none.
        judge: The agent that judges; None if it is this one.
    """

    world: WorldSnapshot
    ruling: Ruling | None
    verdict: Verdict | None
    judge: JudgingAgent | None
