"""One time for all ranks: nanoseconds since the epoch, in which ranks of one node keep their common clock."""

from __future__ import annotations

from otel_torchdist.history.model import RankHistory


class Clocks:
    """Shifts the times of ranks. This is the only place where that is done."""

    def __init__(self) -> None:
        self._shifts: dict[str, int] = {}
        self._unnamed = 0

    def shift_ns(self, history: RankHistory) -> int:
        """Return what to add to the times of a rank.

        Each node's clock is read once: pairs that different ranks took would move them against each other.
        """
        if not history.clock:
            self._unnamed += 1
            return history.wall_offset_ns
        return self._shifts.setdefault(history.clock, history.wall_offset_ns)

    @property
    def sentence(self) -> str:
        """How times of different ranks were aligned."""
        nodes = len(self._shifts)
        if not self._unnamed and nodes <= 1:
            return "all ranks are on one monotonic clock"
        if not self._unnamed:
            return (
                f"{nodes} nodes are aligned by their wall clocks, and differ by as much as those do; "
                "ranks of one node are on its monotonic clock"
            )
        return "ranks are aligned by their wall clocks: their source does not record which of them share a clock"
