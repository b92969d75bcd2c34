"""One time for all ranks by wall clocks: nanoseconds since the epoch, in which ranks of one node keep their clock."""

from __future__ import annotations


class WallClocks:
    """What to add to the times of ranks.

    Each node's clock is read once: pairs of clocks that different ranks took would move them against each other.

    Attributes:
        unnamed: Ranks for which it is not known which clock they have.
    """

    def __init__(self) -> None:
        """Know no clock."""
        self._offsets: dict[str, int] = {}
        self.unnamed = 0

    def offset_ns(self, clock: str, wall_offset_ns: int) -> int:
        """Return what to add to the times of another rank.

        Args:
            clock: Names its clock; '' if that is not known.
            wall_offset_ns: The difference that the rank noted.
        """
        if not clock:
            self.unnamed += 1
            return wall_offset_ns
        return self._offsets.setdefault(clock, wall_offset_ns)

    @property
    def named(self) -> int:
        """How many clocks are known by name."""
        return len(self._offsets)
