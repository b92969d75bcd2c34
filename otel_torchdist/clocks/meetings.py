"""When ranks with different clocks arrived at the same operations and left them: a sample, for memory is bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from otel_torchdist.clocks.offsets import OffsetSample
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.collectives import Waiting, waiting_in
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import ActivityKind, RecordKind
from otel_torchdist.model.operations import Operation, arrival_ns, hold_of, is_awaited_unseen

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

    def add(self, clock: str, records: Sequence[Operation], joins: Sequence[int]) -> None:
        times = self.by_clock.setdefault(clock, {})
        for record in records:
            if record.sequence % self.stride:
                continue
            arrived_ns, end_ns = arrival_ns(record), _end_ns(record, joins)
            if arrived_ns is None or end_ns is None:
                continue
            last_ns, first_ns = times.get(record.sequence, (arrived_ns, end_ns))
            times[record.sequence] = max(arrived_ns, last_ns), min(end_ns, first_ns)


class MeetingTimes:
    """Takes histories one after the other, each of which may then be forgotten."""

    def __init__(self) -> None:
        """Know no meeting."""
        self._channels: dict[Channel, _ChannelTimes] = {}

    def add(self, history: RankHistory, clock: str) -> None:
        """Take the calls of another rank with this clock."""
        most = min(max(_MOST // max(history.world_size, 1), _LEAST_OF_RANK), _MOST_OF_RANK)
        kind = ActivityKind.OPTIMIZER_STEP
        joins = sorted(activity.entered_ns for activity in history.activities if activity.kind is kind)
        for channel, records in _by_channel(history).items():
            known = self._channels.get(channel)
            if known is None:
                # An odd number, so that not always the same of the calls of a step are chosen.
                known = self._channels[channel] = _ChannelTimes(-(-len(records) // most) | 1)
            known.add(clock, records, joins)

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


def _by_channel(history: RankHistory) -> dict[Channel, list[Operation]]:
    """The operations that no rank leaves before all have entered, by channel."""
    found: dict[Channel, list[Operation]] = {}
    known: dict[tuple[int, str], list[Operation] | None] = {}
    for view in history.operations:
        key = id(view.group), view.name
        if key not in known:
            is_aligned = view.group is not None and view.group.name.aligned
            is_meeting = is_aligned and waiting_in(view.name) is Waiting.EVERYONE
            known[key] = found.setdefault(view.operation_id.channel, []) if is_meeting else None
        records = known[key]
        if records is not None and view.record.kind is RecordKind.OPERATION:
            records.append(view.record)
    return found


def _end_ns(record: Operation, joins: Sequence[int]) -> int | None:
    """When a rank went on after an operation for which it waited: all had entered it by then."""
    held = hold_of(record)
    if held is not None:
        return held[1]
    if not is_awaited_unseen(record):
        return None
    place = bisect_left(joins, record.entered_ns)
    return joins[place] if place < len(joins) else None


def reversed_samples(samples: Sequence[OffsetSample]) -> Iterator[OffsetSample]:
    """The same meetings as seen from the other clock."""
    for time_ns, lower, upper, middle in samples:
        yield OffsetSample(time_ns + middle, -upper, -lower, -middle)
