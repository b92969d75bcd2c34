"""The one place that knows what to add to the times of a rank: by meetings, or by wall clocks where there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otel_torchdist.analysis.clocks.offsets import ClockOffset, MeetingTimes, OffsetLine, OffsetSample, reversed_samples
from otel_torchdist.model.naming import name_ranks
from otel_torchdist.model.units import duration
from otel_torchdist.sources.history.call_table import RankCalls

_Chain = Sequence[OffsetLine]
"""From a clock to the reference, over others."""


def clock_of(calls: RankCalls) -> str:
    """Name the clock of a rank; where it is not known which ranks share one, each has its own."""
    return calls.clock or f"rank {calls.rank}"


@dataclass(frozen=True, slots=True)
class Alignment:
    """How the times of all ranks are compared: on the clock of the first one.

    Attributes:
        clocks: All clocks, the reference first.
        are_named: Whether it is known which ranks share a clock.
        wall_offset_ns: Add it to the times of the reference for nanoseconds since the epoch.
    """

    clocks: tuple[ClockOffset, ...]
    are_named: bool
    wall_offset_ns: int
    _by_rank: Mapping[int, ClockOffset]
    _chains: Mapping[str, _Chain]

    def offset_ns(self, rank: int, time_ns: int) -> int:
        """What to add to a time of a rank for that of the reference."""
        clock = self._by_rank[rank]
        if clock.bound_ns is None:
            return clock.offset_ns
        total = 0
        for line in self._chains[clock.clock]:
            total += line.at(time_ns + total)
        return total

    def epoch_ns(self, rank: int, time_ns: int) -> int:
        """A time of a rank in nanoseconds since the epoch, by the wall clock of the reference."""
        return time_ns + self.offset_ns(rank, time_ns) + self.wall_offset_ns

    def on_clock_of(self, rank: int, epoch_ns: int) -> int:
        """What the clock of a rank shows at a time since the epoch."""
        about_ns = epoch_ns - self.wall_offset_ns - self._by_rank[rank].offset_ns
        return about_ns + epoch_ns - self.epoch_ns(rank, about_ns)

    @property
    def is_one_clock(self) -> bool:
        """Whether all ranks share a clock."""
        return len(self.clocks) == 1 and self.are_named

    @property
    def is_bounded(self) -> bool:
        """Whether it is known of all times by how much they are off at most."""
        return all(clock.bound_ns is not None for clock in self.clocks)

    @property
    def bound_ns(self) -> int:
        """By how much times are off at most, as far as meetings show that."""
        return max((clock.bound_ns or 0 for clock in self.clocks), default=0)

    @property
    def sentence(self) -> str:
        """How times of different ranks were aligned."""
        if self.is_one_clock:
            return "all ranks are on one monotonic clock"
        who = f"{len(self.clocks)} nodes" if self.are_named else "ranks"
        by_wall = [clock for clock in self.clocks if clock.bound_ns is None]
        if len(by_wall) == len(self.clocks) - 1:  # all but the reference
            text = f"{who} are aligned by their wall clocks, and differ by as much as those do"
        else:
            text = f"{who} are aligned by the operations in which their ranks meet, to ± {duration(self.bound_ns)}"
            if by_wall:
                alone = sorted(rank for clock in by_wall for rank in clock.ranks)
                text += f"; wall clocks are taken for {name_ranks(alone)}, which met no others"
        if self.are_named:
            return f"{text}; ranks of one node are on its monotonic clock"
        return f"{text}; their source does not record which of them share a clock"


class ClockAligner:
    """Takes the calls of one rank after the other, each of which may then be forgotten."""

    def __init__(self) -> None:
        """Know no clock."""
        self._meetings = MeetingTimes()
        self._ranks: dict[str, list[int]] = {}
        self._walls: dict[str, int] = {}
        self._unnamed: set[str] = set()

    def add(self, calls: RankCalls) -> None:
        """Take the calls of another rank."""
        clock = clock_of(calls)
        self._ranks.setdefault(clock, []).append(calls.rank)
        # Pairs of clocks that different ranks of a node have noted would move these against each other.
        self._walls.setdefault(clock, calls.wall_offset_ns)
        if not calls.clock:
            self._unnamed.add(clock)
        self._meetings.add(calls, clock)

    def wall_offset_ns(self, calls: RankCalls) -> int:
        """What to add to the times of a rank that was added, by the wall clock of its node alone."""
        return self._walls[clock_of(calls)]

    def alignment(self) -> Alignment:
        """Compare the clocks of all ranks so far."""
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
        """For each clock that can be reached from the reference, the lines that lead there over few others."""
        samples = self._meetings.samples(order)
        neighbours: dict[str, list[str]] = {}
        for one, other in samples:
            neighbours.setdefault(one, []).append(other)
            neighbours.setdefault(other, []).append(one)
        chains: dict[str, _Chain] = {order[0]: ()}
        front = [order[0]]
        while front:
            reached: list[str] = []
            for one in front:
                for other in neighbours.get(one, ()):
                    if other not in chains:
                        chains[other] = (self._line(one, other, samples), *chains[one])
                        reached.append(other)
            front = reached
        return chains

    def _line(self, one: str, other: str, samples: Mapping[tuple[str, str], Sequence[OffsetSample]]) -> OffsetLine:
        found = samples.get((one, other))
        if found is None:
            found = list(reversed_samples(samples[other, one]))
        # Ranks that do not name their clock may well be on one node.
        is_unnamed = one in self._unnamed and other in self._unnamed
        return OffsetLine(found, self._walls[other] - self._walls[one] if is_unnamed else None)
