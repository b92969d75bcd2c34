"""Which ranks meet in which calls, and whose arrival lets whom go on."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from otel_torchdist.critical_path.timelines import Timeline
from otel_torchdist.model.calls import ANY_RANK, Channel
from otel_torchdist.model.collectives import Waiting, waiting_in


class Place(NamedTuple):
    """A call of one rank.

    Attributes:
        rank: Index of the rank's timeline.
        call: Place of the call in its columns.
    """

    rank: int
    call: int


class Arrivals:
    """Calls in the order in which ranks arrived at them.

    Attributes:
        places: The calls; of those at the same moment that of the lowest rank comes last.
        times: When these were.
    """

    __slots__ = ("places", "times")

    def __init__(self, timelines: Sequence[Timeline], places: Sequence[Place]) -> None:
        """Order some calls."""
        ordered = sorted((timelines[rank].arrived[call], -rank, call) for rank, call in places)
        self.places = [Place(-rank, call) for _, rank, call in ordered]
        self.times = array("q", [time_ns for time_ns, _, _ in ordered])

    def until(self, time_ns: int) -> int:
        """How many of them were no later than a moment."""
        return bisect_right(self.times, time_ns)


class Meetings:
    """The calls of all ranks by their positions in channels."""

    def __init__(self, timelines: Sequence[Timeline]) -> None:
        """Find what belongs together."""
        self._timelines = timelines
        self._channels: list[list[int]] = []
        self._at: dict[tuple[int, int], list[Place]] = {}
        self._whole: dict[tuple[int, int], Arrivals] = {}
        self._waiting = [[waiting_in(label.operation) for label in timeline.labels] for timeline in timelines]
        known: dict[Channel, int] = {}
        accepting = {_inbox(one) for timeline in timelines for one in timeline.channels if _accepts_any(one)}
        for rank, timeline in enumerate(timelines):
            own = [
                -1 if one.is_point_to_point and _inbox(one) in accepting else known.setdefault(one, len(known))
                for one in timeline.channels
            ]
            self._channels.append(own)
            for call, (channel, sequence) in enumerate(zip(timeline.channel, timeline.sequence, strict=True)):
                if channel >= 0 and own[channel] >= 0:
                    self._at.setdefault((own[channel], sequence), []).append(Place(rank, call))

    def needed(self, rank: int, call: int) -> Arrivals:
        """The calls before which a call cannot end, itself included. The clocks of all ranks are aligned by now."""
        timeline = self._timelines[rank]
        channel = timeline.channel[call]
        if channel < 0 or self._channels[rank][channel] < 0:
            return Arrivals(self._timelines, [Place(rank, call)])
        position = self._channels[rank][channel], timeline.sequence[call]
        waiting, is_root = self._waiting[rank][timeline.label[call]], timeline.root[call] == timeline.rank
        # Large sends of gloo and NCCL wait for the receiver too.
        if waiting in (Waiting.EVERYONE, Waiting.RECEIVER) or (waiting is Waiting.ROOT and is_root):
            return self._all_at(position)
        own = [Place(rank, call)]
        if waiting is Waiting.FOR_ROOT and not is_root:
            root = timeline.root[call]
            own += [place for place in self._at[position] if self._timelines[place.rank].rank == root]
        return Arrivals(self._timelines, own)

    def _all_at(self, position: tuple[int, int]) -> Arrivals:
        """All calls of a meeting, ordered once: each of thousands of members needs them."""
        found = self._whole.get(position)
        if found is None:
            found = self._whole[position] = Arrivals(self._timelines, self._at[position])
        return found


def _accepts_any(channel: Channel) -> bool:
    return channel.is_point_to_point and channel.source == ANY_RANK


def _inbox(channel: Channel) -> tuple[str, int]:
    """What is sent to a rank that has accepted from any rank cannot be matched with what it received."""
    return channel.group, channel.destination
