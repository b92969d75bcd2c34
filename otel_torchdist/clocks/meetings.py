"""When ranks with different clocks arrived at the same operations and left them: a sample, for memory is bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from otel_torchdist.clocks.offsets import OffsetSample
from otel_torchdist.history.call_table import RankCalls
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.collectives import Waiting, waiting_in
from otel_torchdist.model.kinds import RecordKind

_MOST: Final = 400_000
"""Operations of one channel each, of all ranks together."""
_MOST_OF_RANK: Final = 4_096
_LEAST_OF_RANK: Final = 64

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
