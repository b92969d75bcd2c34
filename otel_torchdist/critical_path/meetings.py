"""Which ranks meet in which calls, and whose arrival lets whom go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from otel_torchdist.critical_path.timelines import Timeline
from otel_torchdist.statistics.waiting import Waiting, waiting_in
from otel_torchdist.world.model import ANY_RANK, Channel


class Place(NamedTuple):
    """A call of one rank.

    Attributes:
        rank: Index of the rank's timeline.
        call: Place of the call in its columns.
    """

    rank: int
    call: int


class Meetings:
    """The calls of all ranks by their positions in channels."""

    def __init__(self, timelines: Sequence[Timeline]) -> None:
        """Find what belongs together."""
        self._timelines = timelines
        self._channels: list[list[int]] = []
        self._at: dict[tuple[int, int], list[Place]] = {}
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

    def all(self) -> Iterator[list[Place]]:
        """The calls of each meeting that has several."""
        return (places for places in self._at.values() if len(places) > 1)

    def at(self, rank: int, call: int) -> list[Place]:
        """The calls that meet with one, itself included."""
        timeline = self._timelines[rank]
        channel = timeline.channel[call]
        if channel < 0 or self._channels[rank][channel] < 0:
            return [Place(rank, call)]
        return self._at[self._channels[rank][channel], timeline.sequence[call]]

    def needed(self, rank: int, call: int) -> list[Place]:
        """The calls before which a call cannot end, itself included."""
        places = self.at(rank, call)
        if len(places) == 1:
            return places
        waiting = self.waiting(rank, call)
        if waiting in (Waiting.EVERYONE, Waiting.RECEIVER):  # gloo's and NCCL's large sends wait for the receiver too
            return places
        root = self._timelines[rank].root[call]
        own_rank = self._timelines[rank].rank
        if waiting is Waiting.ROOT and root == own_rank:
            return places
        if waiting is Waiting.FOR_ROOT and root != own_rank:
            return [one for one in places if one.rank == rank or self._timelines[one.rank].rank == root]
        return [Place(rank, call)]

    def waiting(self, rank: int, call: int) -> Waiting:
        """Which ranks wait for which in a call."""
        timeline = self._timelines[rank]
        return waiting_in(timeline.labels[timeline.label[call]].operation)


def _accepts_any(channel: Channel) -> bool:
    return channel.is_point_to_point and channel.source == ANY_RANK


def _inbox(channel: Channel) -> tuple[str, int]:
    """What is sent to a rank that has accepted from any rank cannot be matched with what it received."""
    return channel.group, channel.destination
