"""How the times of ranks are drawn: by their wall clocks, and how that is reported."""

from __future__ import annotations

from otel_torchdist.history.clocks import WallClocks
from otel_torchdist.history.model import RankHistory


class Clocks:
    """Shifts the times of ranks. This is the only place where that is done."""

    def __init__(self) -> None:
        self._wall = WallClocks()

    def shift_ns(self, history: RankHistory) -> int:
        """Return what to add to the times of a rank."""
        return self._wall.offset_ns(history.clock, history.wall_offset_ns)

    @property
    def sentence(self) -> str:
        """How times of different ranks were aligned."""
        nodes, unnamed = self._wall.named, self._wall.unnamed
        if not unnamed and nodes <= 1:
            return "all ranks are on one monotonic clock"
        if not unnamed:
            return (
                f"{nodes} nodes are aligned by their wall clocks, and differ by as much as those do; "
                "ranks of one node are on its monotonic clock"
            )
        return "ranks are aligned by their wall clocks: their source does not record which of them share a clock"
