"""How far two clocks are apart, from the operations in which ranks that have them meet.

No rank leaves a collective before the last has entered it: that bounds the difference of two clocks from both sides.
Within the bounds the median difference of the ends is taken: on gloo it was 20 to 90 µs off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from otel_torchdist.model.calls import Channel
from otel_torchdist.model.collectives import Waiting, waiting_in
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.sources.history.call_table import RankCalls

_MOST: Final = 400_000
"""Operations of one channel each, of all ranks together."""
_MOST_OF_RANK: Final = 4_096
_LEAST_OF_RANK: Final = 64
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


_Times = dict[int, tuple[int, int]]
"""By the operation's position, the last arrival and the first end by one clock."""


class _ChannelTimes:
    """The sampled operations of one channel.

    Attributes:
        stride: Each position that it divides is in the sample, so that it has the same operations of all ranks.
        by_clock: Their times.
    """

    def __init__(self, stride: int) -> None:
        self.stride = stride
        self.by_clock: dict[str, _Times] = {}

    def add(self, clock: str, calls: RankCalls, places: Iterable[int], joins: Sequence[int]) -> None:
        times = self.by_clock.setdefault(clock, {})
        for place in places:
            sequence = calls.sequence[place]
            if sequence % self.stride or not calls.has_arrived(place):
                continue
            arrived_ns, end_ns = calls.begun[place], _end_ns(calls, place, joins)
            if end_ns is None:
                continue
            last_ns, first_ns = times.get(sequence, (arrived_ns, end_ns))
            times[sequence] = max(arrived_ns, last_ns), min(end_ns, first_ns)


class MeetingTimes:
    """Takes the calls of one rank after the other, each of which may then be forgotten."""

    def __init__(self) -> None:
        """Know no meeting."""
        self._channels: dict[Channel, _ChannelTimes] = {}

    def add(self, calls: RankCalls, clock: str) -> None:
        """Take the calls of another rank with this clock."""
        most = min(max(_MOST // max(calls.world_size, 1), _LEAST_OF_RANK), _MOST_OF_RANK)
        joins = calls.joins()
        for channel, places in _by_channel(calls).items():
            known = self._channels.get(channel)
            if known is None:
                # An odd number, so that not always the same of the calls of a step are chosen.
                known = self._channels[channel] = _ChannelTimes(-(-len(places) // most) | 1)
            known.add(clock, calls, places, joins)

    def samples(self, order: Sequence[str]) -> Mapping[tuple[str, str], list[OffsetSample]]:
        """For each two clocks what their meetings show: the first clock of each meeting is compared with the others.

        Args:
            order: All clocks.
        """
        found: dict[tuple[str, str], list[OffsetSample]] = {}
        for channel in self._channels.values():
            first: dict[int, tuple[str, int, int]] = {}
            for clock in order:
                for sequence, (last_ns, end_ns) in channel.by_clock.get(clock, _Times()).items():
                    if sequence not in first:
                        first[sequence] = clock, last_ns, end_ns
                        continue
                    one, one_last, one_end = first[sequence]
                    sample = OffsetSample(end_ns, one_last - end_ns, one_end - last_ns, one_end - end_ns)
                    found.setdefault((one, clock), []).append(sample)
        return found


def _by_channel(calls: RankCalls) -> dict[Channel, list[int]]:
    """Return where the operations are that no rank leaves before all have entered, by channel."""
    are_meetings = [
        kind.record_kind is RecordKind.OPERATION and waiting_in(kind.operation) is Waiting.EVERYONE
        for kind in calls.kinds
    ]
    found: dict[Channel, list[int]] = {}
    for (channel, is_aligned), places in zip(calls.channels, calls.by_channel(), strict=True):
        own = [place for place in places if are_meetings[calls.kind[place]]] if is_aligned else []
        if own:
            found[channel] = own
    return found


def _end_ns(calls: RankCalls, place: int, joins: Sequence[int]) -> int | None:
    """When a rank went on after an operation for which it waited: all had entered it by then."""
    held = calls.hold(place)
    if held is not None:
        return held[1]
    if not calls.is_awaited_unseen(place):
        return None
    nth = bisect_left(joins, calls.returned[place])
    return joins[nth] if nth < len(joins) else None


def reversed_samples(samples: Sequence[OffsetSample]) -> Iterator[OffsetSample]:
    """The same meetings as seen from the other clock."""
    for time_ns, lower, upper, middle in samples:
        yield OffsetSample(time_ns + middle, -upper, -lower, -middle)
