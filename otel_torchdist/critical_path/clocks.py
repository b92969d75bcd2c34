"""How far the clocks of nodes are apart, from the operations in which their ranks meet.

No rank leaves a collective before the last has entered it: that bounds the difference of two clocks from both sides.
Within the bounds the median difference of the ends is taken: on gloo it was 20 to 90 µs off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

from otel_torchdist.critical_path.meetings import Meetings, Place
from otel_torchdist.critical_path.timelines import Timeline
from otel_torchdist.statistics.waiting import Waiting

SECTION_NS: Final = 10_000_000_000
"""Clocks of two nodes run apart by some 10 µs a second: differences are measured anew for each section."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What to add to the times of one clock for those of the reference.

    Attributes:
        clock: The clock.
        ranks: The ranks that have it, ascending.
        offset_ns: What to add, at the middle of what was compared.
        bound_ns: By how much that may be wrong at most; None if no rank with this clock met one with a known clock, so
            that wall clocks were taken.
        meetings: How many operations it follows from.
    """

    clock: str
    ranks: tuple[int, ...]
    offset_ns: int
    bound_ns: int | None
    meetings: int


class _Sample(NamedTuple):
    """What one meeting shows of two clocks.

    Attributes:
        time_ns: When it was, by the second clock.
        lower: What the first clock is ahead at least.
        upper: What it is ahead at most.
        middle: The difference of the ends.
    """

    time_ns: int
    lower: int
    upper: int
    middle: int


class _Line:
    """What to add to the times of one clock for those of another, over time."""

    def __init__(self, samples: Sequence[_Sample]) -> None:
        self.meetings = len(samples)
        self._times: list[int] = []
        self._offsets: list[int] = []
        self.bound_ns = 0
        ordered = sorted(samples)
        begin = 0
        while begin < len(ordered):
            end = bisect_left(ordered, ordered[begin].time_ns + SECTION_NS, key=lambda one: one.time_ns)
            self._add(ordered[begin:end])
            begin = end

    def _add(self, section: Sequence[_Sample]) -> None:
        lower = max(sample.lower for sample in section)
        upper = min(sample.upper for sample in section)
        middle = int(median(sample.middle for sample in section))
        if lower <= upper:
            middle = min(max(middle, lower), upper)
        self.bound_ns = max(self.bound_ns, abs(upper - middle), abs(middle - lower))
        self._times.append(int(median(sample.time_ns for sample in section)))
        self._offsets.append(middle)

    def at(self, time_ns: int) -> int:
        """What to add to a time: between two sections in proportion."""
        place = bisect_left(self._times, time_ns)
        if place == 0:
            return self._offsets[0]
        if place == len(self._times):
            return self._offsets[-1]
        before, after = self._times[place - 1], self._times[place]
        rise = self._offsets[place] - self._offsets[place - 1]
        return self._offsets[place - 1] + rise * (time_ns - before) // (after - before)

    @property
    def middle_ns(self) -> int:
        return self._offsets[len(self._offsets) // 2]


def align(timelines: Sequence[Timeline], meetings: Meetings) -> list[ClockOffset]:
    """Shift all timelines to one clock, that of the first rank.

    Returns:
        The clocks, the reference first; only that if all ranks share it.
    """
    ranks: dict[str, list[int]] = {}
    for timeline in timelines:
        ranks.setdefault(timeline.clock, []).append(timeline.rank)
    reference = timelines[0].clock
    found = [ClockOffset(reference, tuple(ranks[reference]), 0, 0, 0)]
    if len(ranks) == 1:
        return found
    chains = _chains(reference, _samples(timelines, meetings))
    walls = {timeline.clock: timeline.wall_offset_ns for timeline in timelines}
    for clock in ranks.keys() - {reference}:
        chain = chains.get(clock)
        shift = _by_wall(walls[clock] - walls[reference]) if chain is None else _through(chain)
        for timeline in timelines:
            if timeline.clock == clock:
                timeline.shift(shift)
        found.append(_offset(clock, ranks[clock], chain, walls[clock] - walls[reference]))
    return [found[0], *sorted(found[1:], key=lambda one: one.ranks)]


def _offset(clock: str, ranks: Sequence[int], chain: Sequence[_Line] | None, by_wall_ns: int) -> ClockOffset:
    if chain is None:
        return ClockOffset(clock, tuple(ranks), by_wall_ns, None, 0)
    bound = sum(line.bound_ns for line in chain)
    meetings = min(line.meetings for line in chain)
    return ClockOffset(clock, tuple(ranks), sum(line.middle_ns for line in chain), bound, meetings)


def _by_wall(offset_ns: int) -> Callable[[int], int]:
    return lambda _: offset_ns


def _through(chain: Sequence[_Line]) -> Callable[[int], int]:
    def shift(time_ns: int) -> int:
        total = 0
        for line in chain:
            total += line.at(time_ns + total)
        return total

    return shift


def _samples(timelines: Sequence[Timeline], meetings: Meetings) -> Mapping[tuple[str, str], list[_Sample]]:
    """For each two clocks what their meetings show."""
    ends = [
        {block.calls[0]: block.release_ns for block in timeline.blocks if len(block.calls) == 1}
        for timeline in timelines
    ]
    found: dict[tuple[str, str], list[_Sample]] = {}
    for places in meetings.all():
        if meetings.waiting(*places[0]) is not Waiting.EVERYONE:
            continue
        by_clock = _by_clock(places, timelines, ends)
        for one, other in combinations(sorted(by_clock), 2):
            (one_last, one_end), (other_last, other_end) = by_clock[one], by_clock[other]
            if one_end is None or other_end is None:
                continue
            ahead = one_end - other_end
            found.setdefault((one, other), []).append(
                _Sample(other_end, one_last - other_end, one_end - other_last, ahead)
            )
            found.setdefault((other, one), []).append(
                _Sample(one_end, other_last - one_end, other_end - one_last, -ahead)
            )
    return found


def _by_clock(
    places: Sequence[Place], timelines: Sequence[Timeline], ends: Sequence[Mapping[int, int]]
) -> dict[str, tuple[int, int | None]]:
    """By clock the last arrival and the first end that is known."""
    found: dict[str, tuple[int, int | None]] = {}
    for rank, call in places:
        timeline = timelines[rank]
        last_ns, end_ns = timeline.arrived[call], ends[rank].get(call)
        if timeline.clock in found:
            before_ns, first_ns = found[timeline.clock]
            last_ns = max(last_ns, before_ns)
            end_ns = min((one for one in (end_ns, first_ns) if one is not None), default=None)
        found[timeline.clock] = (last_ns, end_ns)
    return found


def _chains(reference: str, samples: Mapping[tuple[str, str], list[_Sample]]) -> dict[str, list[_Line]]:
    """For each clock that can be reached from the reference, the lines that lead there over few others."""
    neighbours: dict[str, list[str]] = {}
    for one, other in samples:
        neighbours.setdefault(one, []).append(other)
    chains: dict[str, list[_Line]] = {reference: []}
    front = [reference]
    while front:
        reached: list[str] = []
        for one in front:
            for other in neighbours.get(one, ()):
                if other not in chains:
                    chains[other] = [_Line(samples[one, other]), *chains[one]]
                    reached.append(other)
        front = reached
    return chains
