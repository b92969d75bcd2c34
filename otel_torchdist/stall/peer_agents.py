"""Who else sees ranks of a run: agents of other nodes, one of which judges for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from otel_torchdist.stall.events import Ruling, StacksOverdue, StacksWanted
from otel_torchdist.world.model import Channel, WorldSnapshot


@dataclass(frozen=True, slots=True)
class Leads:
    """It is this agent that judges.

    Attributes:
        world: All ranks that any agent sees.
        seat: This agent's, see `Incident`.
    """

    world: WorldSnapshot
    seat: int = 0


@dataclass(frozen=True, slots=True)
class Follows:
    """Another agent judges.

    Attributes:
        ruling: What it says of the stall that is on; None when there is none.
        is_hurried: Whether it asks at short intervals.
    """

    ruling: Ruling | None
    is_hurried: bool = False


@dataclass(frozen=True, slots=True)
class Undecided:
    """The others have been asked, and have not answered yet."""


Seating: TypeAlias = Leads | Follows | Undecided


class PeerAgents(Protocol):
    """The agents that see ranks of the same runs. Nothing of it blocks."""

    def meet(self, world: WorldSnapshot, suspects_stall: bool) -> Seating:
        """Show the others what is seen here, and learn who judges.

        Args:
            world: The local ranks of a run.
            suspects_stall: Whether a stall is on, or near.
        """
        ...

    def tell(self, run: int, ruling: Ruling | None) -> None:
        """Let the others know what is said of a run; None when nothing is."""
        ...

    def want_calls(self, run: int, windows: frozenset[tuple[Channel, int]]) -> None:
        """Have the others show these windows of calls in full, as long as they have them."""
        ...

    def ask(self, wanted: StacksWanted | StacksOverdue) -> None:
        """Pass on which ranks should say where they are."""
        ...

    def asked(self) -> list[StacksWanted | StacksOverdue]:
        """What others want to know of ranks that are seen here, each once."""
        ...
