"""Measures the offset between two clocks from the collectives that their ranks share.

No rank leaves a collective before the last rank has entered it. This bounds the offset from both sides. Within the
bounds, the median difference between the ends on the two clocks is used: on gloo its error was 20 to 90 µs.
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

_MAX_SAMPLES: Final = 400_000
"""Upper bound on the sampled operations of each channel, over all ranks."""
_MAX_SAMPLES_OF_RANK: Final = 4_096
_MIN_SAMPLES_OF_RANK: Final = 64
SECTION_NS: Final = 10_000_000_000
"""Length of the sections of time that offsets are measured for. Clocks of two nodes drift by some 10 µs a second."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The offset of one clock to the reference.

    Attributes:
        clock: Name of the clock.
        ranks: The ranks on this clock, ascending.
        offset_ns: Nanoseconds to add to times of this clock, measured in the middle of the compared period.
        bound_ns: Upper bound on the error; None if wall clocks were used, because no rank on this clock shared a
            collective with an aligned clock.
        meetings: Number of compared operations.
    """

    clock: str
    ranks: tuple[int, ...]
    offset_ns: int
    bound_ns: int | None
    meetings: int


class OffsetSample(NamedTuple):
    """Bounds on the offset between two clocks from one collective.

    Attributes:
        time_ns: Time of the collective, on the second clock.
        lower: Lower bound: the first clock is ahead by at least this.
        upper: Upper bound: the first clock is ahead by at most this.
        middle: Estimate: the difference between the first end on each clock.
    """

    time_ns: int
    lower: int
    upper: int
    middle: int


class OffsetLine:
    """The offset from one clock to another as a piecewise linear function of time.

    Attributes:
        meetings: Number of compared operations.
        bound_ns: Upper bound on the error.
    """

    def __init__(self, samples: Sequence[OffsetSample], likely_ns: int | None) -> None:
        """Measure the offset.

        Args:
            samples: Bounds from collectives.
            likely_ns: The offset to assume if the bounds allow it; None for the median difference of ends.
        """
        self.meetings = len(samples)
        self.bound_ns = 0
        self._likely_ns = likely_ns
        self._times: list[int] = []
        self._offsets: list[int] = []
        ordered = sorted(samples)
        begin = 0
        while begin < len(ordered):
            end = bisect_left(ordered, ordered[begin].time_ns + SECTION_NS, key=lambda sample: sample.time_ns)
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
        """Return the offset at a time, interpolated between sections."""
        index = bisect_left(self._times, time_ns)
        if index == 0:
            return self._offsets[0]
        if index == len(self._times):
            return self._offsets[-1]
        before, after = self._times[index - 1], self._times[index]
        rise = self._offsets[index] - self._offsets[index - 1]
        return self._offsets[index - 1] + rise * (time_ns - before) // (after - before)

    @property
    def middle_ns(self) -> int:
        """The offset in the middle of the compared period."""
        return self._offsets[len(self._offsets) // 2]


_Times = dict[int, tuple[int, int]]
"""The last arrival and the first end on one clock, by the operation's position."""


class _ChannelTimes:
    """The sampled operations of one channel.

    Attributes:
        stride: Only positions divisible by the stride are sampled, so that all ranks sample the same operations.
        by_clock: Times, by clock.
    """

    def __init__(self, stride: int) -> None:
        self.stride = stride
        self.by_clock: dict[str, _Times] = {}

    def add(self, clock: str, calls: RankCalls, indices: Iterable[int], optimizer_starts: Sequence[int]) -> None:
        times = self.by_clock.setdefault(clock, {})
        for index in indices:
            sequence = calls.sequence[index]
            if sequence % self.stride or not calls.has_arrived(index):
                continue
            arrived_ns, end_ns = calls.started[index], _end_ns(calls, index, optimizer_starts)
            if end_ns is None:
                continue
            last_ns, first_ns = times.get(sequence, (arrived_ns, end_ns))
            times[sequence] = max(arrived_ns, last_ns), min(end_ns, first_ns)


class MeetingTimes:
    """Collects the times of shared collectives, one rank at a time. The caller may drop the calls after adding them."""

    def __init__(self) -> None:
        """Start without channels."""
        self._channels: dict[Channel, _ChannelTimes] = {}

    def add(self, calls: RankCalls, clock: str) -> None:
        """Add the calls of a rank on a clock."""
        most = min(max(_MAX_SAMPLES // max(calls.world_size, 1), _MIN_SAMPLES_OF_RANK), _MAX_SAMPLES_OF_RANK)
        optimizer_starts = calls.optimizer_starts()
        for channel, indices in _by_channel(calls).items():
            known = self._channels.get(channel)
            if known is None:
                # An odd stride, so that it does not always pick the same calls of a step.
                known = self._channels[channel] = _ChannelTimes(-(-len(indices) // most) | 1)
            known.add(clock, calls, indices, optimizer_starts)

    def samples(self, order: Sequence[str]) -> Mapping[tuple[str, str], list[OffsetSample]]:
        """Return the samples for each pair of clocks. In each collective, the first clock is compared with the others.

        Args:
            order: All clocks, the reference first.
        """
        samples: dict[tuple[str, str], list[OffsetSample]] = {}
        for channel in self._channels.values():
            first: dict[int, tuple[str, int, int]] = {}
            for clock in order:
                for sequence, (last_ns, end_ns) in channel.by_clock.get(clock, _Times()).items():
                    if sequence not in first:
                        first[sequence] = clock, last_ns, end_ns
                        continue
                    other, other_last_ns, other_end_ns = first[sequence]
                    sample = OffsetSample(end_ns, other_last_ns - end_ns, other_end_ns - last_ns, other_end_ns - end_ns)
                    samples.setdefault((other, clock), []).append(sample)
        return samples


def _by_channel(calls: RankCalls) -> dict[Channel, list[int]]:
    """Return the indices of operations that no rank leaves before all have entered, by channel."""
    are_meetings = [
        kind.record_kind is RecordKind.OPERATION and waiting_in(kind.operation) is Waiting.EVERYONE
        for kind in calls.kinds
    ]
    by_channel: dict[Channel, list[int]] = {}
    for (channel, is_aligned), indices in zip(calls.channels, calls.by_channel(), strict=True):
        meetings = [index for index in indices if are_meetings[calls.kind[index]]] if is_aligned else []
        if meetings:
            by_channel[channel] = meetings
    return by_channel


def _end_ns(calls: RankCalls, index: int, optimizer_starts: Sequence[int]) -> int | None:
    """Return when a rank continued after waiting for an operation, or None. All ranks had entered it by then."""
    interval = calls.blocked_interval(index)
    if interval is not None:
        return interval[1]
    if not calls.may_have_unrecorded_wait(index):
        return None
    nth = bisect_left(optimizer_starts, calls.returned[index])
    return optimizer_starts[nth] if nth < len(optimizer_starts) else None


def reversed_samples(samples: Sequence[OffsetSample]) -> Iterator[OffsetSample]:
    """Yield the samples from the other clock's point of view."""
    for time_ns, lower, upper, middle in samples:
        yield OffsetSample(time_ns + middle, -upper, -lower, -middle)
