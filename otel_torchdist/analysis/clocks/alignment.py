"""Aligns the clocks of all ranks, by collectives that ranks share, or by wall clocks if there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otel_torchdist.analysis.clocks.offsets import ClockOffset, MeetingTimes, OffsetLine, OffsetSample, reversed_samples
from otel_torchdist.model.text import duration, name_ranks
from otel_torchdist.sources.history.call_table import RankCalls

_Chain = Sequence[OffsetLine]
"""Steps from a clock to the reference, through intermediate clocks."""


def clock_of(calls: RankCalls) -> str:
    """Return the name of a rank's clock. A rank with an unknown clock gets a separate one."""
    return calls.clock or f"rank {calls.rank}"


@dataclass(frozen=True, slots=True)
class Alignment:
    """The clock offsets of all ranks, relative to the clock of the first rank, the reference.

    Attributes:
        clocks: All clocks, the reference first.
        are_named: Whether the source records which ranks share a clock.
        wall_offset_ns: Offset from times of the reference to nanoseconds since the epoch.
    """

    clocks: tuple[ClockOffset, ...]
    are_named: bool
    wall_offset_ns: int
    _by_rank: Mapping[int, ClockOffset]
    _chains: Mapping[str, _Chain]

    def offset_ns(self, rank: int, time_ns: int) -> int:
        """Return the nanoseconds to add to a rank's time to get the reference's time."""
        clock = self._by_rank[rank]
        if clock.bound_ns is None:
            return clock.offset_ns
        total = 0
        for line in self._chains[clock.clock]:
            total += line.at(time_ns + total)
        return total

    def epoch_ns(self, rank: int, time_ns: int) -> int:
        """Convert a rank's time to nanoseconds since the epoch, by the reference's wall clock."""
        return time_ns + self.offset_ns(rank, time_ns) + self.wall_offset_ns

    def on_clock_of(self, rank: int, epoch_ns: int) -> int:
        """Convert nanoseconds since the epoch to a rank's time."""
        nearby_ns = epoch_ns - self.wall_offset_ns - self._by_rank[rank].offset_ns
        return nearby_ns + epoch_ns - self.epoch_ns(rank, nearby_ns)

    @property
    def is_one_clock(self) -> bool:
        """Whether all ranks share a clock."""
        return len(self.clocks) == 1 and self.are_named

    @property
    def is_bounded(self) -> bool:
        """Whether the error of every clock has a known bound."""
        return all(clock.bound_ns is not None for clock in self.clocks)

    @property
    def bound_ns(self) -> int:
        """Upper bound on the error of aligned times, over the clocks with a known bound."""
        return max((clock.bound_ns or 0 for clock in self.clocks), default=0)

    @property
    def sentence(self) -> str:
        """The method and the accuracy of the alignment, as a sentence."""
        if self.is_one_clock:
            return "all ranks are on one monotonic clock"
        subject = f"{len(self.clocks)} nodes" if self.are_named else "ranks"
        by_wall = [clock for clock in self.clocks if clock.bound_ns is None]
        if len(by_wall) == len(self.clocks) - 1:  # all but the reference
            text = f"{subject} are aligned by their wall clocks, and are only as accurate as these"
        else:
            text = f"{subject} are aligned by the operations in which their ranks meet, to ± {duration(self.bound_ns)}"
            if by_wall:
                alone = sorted(rank for clock in by_wall for rank in clock.ranks)
                text += f"; {name_ranks(alone)} shared no operation with others, and wall clocks align them"
        if self.are_named:
            return f"{text}; ranks of one node are on its monotonic clock"
        return f"{text}; their source does not record which ranks share a clock"


class ClockAligner:
    """Aligns clocks from the calls of one rank at a time. The caller may drop the calls after adding them."""

    def __init__(self) -> None:
        """Start without clocks."""
        self._meetings = MeetingTimes()
        self._ranks: dict[str, list[int]] = {}
        self._walls: dict[str, int] = {}
        self._unnamed: set[str] = set()

    def add(self, calls: RankCalls) -> None:
        """Add the calls of a rank."""
        clock = clock_of(calls)
        self._ranks.setdefault(clock, []).append(calls.rank)
        # Ranks of a node read the wall clock at different times; separate offsets would shift them apart.
        self._walls.setdefault(clock, calls.wall_offset_ns)
        if not calls.clock:
            self._unnamed.add(clock)
        self._meetings.add(calls, clock)

    def wall_offset_ns(self, calls: RankCalls) -> int:
        """Return the wall clock offset of an added rank's node, independent of the alignment."""
        return self._walls[clock_of(calls)]

    def alignment(self) -> Alignment:
        """Return the clock offsets between the ranks added so far."""
        order = sorted(self._ranks, key=lambda clock: min(self._ranks[clock]))
        if not order:
            return Alignment((), False, 0, {}, {})
        chains = self._chains(order)
        clocks = tuple(self._offset(clock, order[0], chains.get(clock)) for clock in order)
        by_rank = {rank: clock for clock in clocks for rank in clock.ranks}
        return Alignment(clocks, not self._unnamed, self._walls[order[0]], by_rank, chains)

    def _offset(self, clock: str, reference: str, chain: _Chain | None) -> ClockOffset:
        ranks = tuple(sorted(self._ranks[clock]))
        if chain is None:
            return ClockOffset(clock, ranks, self._walls[clock] - self._walls[reference], None, 0)
        bound_ns = sum(line.bound_ns for line in chain)
        meetings = min((line.meetings for line in chain), default=0)
        return ClockOffset(clock, ranks, sum(line.middle_ns for line in chain), bound_ns, meetings)

    def _chains(self, order: Sequence[str]) -> dict[str, _Chain]:
        """Return the shortest chain to the reference for each clock that has one."""
        samples = self._meetings.samples(order)
        neighbors: dict[str, list[str]] = {}
        for first, second in samples:
            neighbors.setdefault(first, []).append(second)
            neighbors.setdefault(second, []).append(first)
        chains: dict[str, _Chain] = {order[0]: ()}
        frontier = [order[0]]
        while frontier:
            reached: list[str] = []
            for clock in frontier:
                for other in neighbors.get(clock, ()):
                    if other not in chains:
                        chains[other] = (self._line(clock, other, samples), *chains[clock])
                        reached.append(other)
            frontier = reached
        return chains

    def _line(self, clock: str, other: str, samples: Mapping[tuple[str, str], Sequence[OffsetSample]]) -> OffsetLine:
        between = samples.get((clock, other))
        if between is None:
            between = list(reversed_samples(samples[other, clock]))
        # Ranks with unknown clocks may be on one node, where wall clocks agree.
        is_unnamed = clock in self._unnamed and other in self._unnamed
        return OffsetLine(between, self._walls[other] - self._walls[clock] if is_unnamed else None)
