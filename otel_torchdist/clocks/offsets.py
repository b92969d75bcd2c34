"""How far two clocks are apart, from the operations in which ranks that have them meet.

No rank leaves a collective before the last has entered it: that bounds the difference of two clocks from both sides.
Within the bounds the median difference of the ends is taken: on gloo it was 20 to 90 µs off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

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


class OffsetSample(NamedTuple):
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


class OffsetLine:
    """What to add to the times of one clock for those of another, over time.

    Attributes:
        meetings: How many meetings it follows from.
        bound_ns: By how much it may be wrong at most.
    """

    def __init__(self, samples: Sequence[OffsetSample], likely_ns: int | None) -> None:
        """Measure the difference.

        Args:
            samples: What meetings show.
            likely_ns: What the difference is if meetings do not exclude it; None for the median of their ends.
        """
        self.meetings = len(samples)
        self.bound_ns = 0
        self._likely_ns = likely_ns
        self._times: list[int] = []
        self._offsets: list[int] = []
        ordered = sorted(samples)
        begin = 0
        while begin < len(ordered):
            end = bisect_left(ordered, ordered[begin].time_ns + SECTION_NS, key=lambda one: one.time_ns)
            self._add(ordered[begin:end])
            begin = end

    def _add(self, section: Sequence[OffsetSample]) -> None:
        lower = max(sample.lower for sample in section)
        upper = min(sample.upper for sample in section)
        middle = self._likely_ns
        if middle is None or lower > upper:
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
        """What to add in the middle of the time that was compared."""
        return self._offsets[len(self._offsets) // 2]
