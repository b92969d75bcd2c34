"""Walks back from the end of a step: what was the last thing that it had to wait for?

A rank that was held up went on when the last rank that it needed had arrived and the transfer was over. So the path
leads from there to that rank, through the computing of that rank to the call that had held it up before, and so on.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_torchdist.analysis.critical_path.critical_path import PathKind, Piece
from otel_torchdist.analysis.critical_path.timelines import Block, Label, PathTimeline
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.collectives import Waiting, waiting_in
from otel_torchdist.sources.history.meetings import accepting_inboxes, inbox_of

_LEAST_EXPOSED: Final = 0.1
"""If a rank waits for less than this share of a transfer, the transfer ran beside its computing and barely mattered."""
_LEAST_BLOCK_NS: Final = 50_000
"""A wait for something that is over already takes Python some 10 to 20 µs."""


class Place(NamedTuple):
    """A call of one rank.

    Attributes:
        rank: Index of the rank's timeline.
        call: Place of the call in its columns.
    """

    rank: int
    call: int


class OrderedArrivals:
    """Calls in the order in which ranks arrived at them.

    Attributes:
        places: The calls; of those at the same moment that of the lowest rank comes last.
        times: When these were.
    """

    __slots__ = ("places", "times")

    def __init__(self, timelines: Sequence[PathTimeline], places: Sequence[Place]) -> None:
        """Order some calls."""
        ordered = sorted((timelines[rank].arrived[call], -rank, call) for rank, call in places)
        self.places = [Place(-rank, call) for _, rank, call in ordered]
        self.times = array("q", [time_ns for time_ns, _, _ in ordered])

    def until(self, time_ns: int) -> int:
        """How many of them were no later than a moment."""
        return bisect_right(self.times, time_ns)


class PathMeetings:
    """The calls of all ranks by their positions in channels."""

    def __init__(self, timelines: Sequence[PathTimeline]) -> None:
        """Find what belongs together."""
        self._timelines = timelines
        self._channels: list[list[int]] = []
        self._at: dict[tuple[int, int], list[Place]] = {}
        self._whole: dict[tuple[int, int], OrderedArrivals] = {}
        self._waiting = [[waiting_in(label.operation) for label in timeline.labels] for timeline in timelines]
        known: dict[Channel, int] = {}
        accepting = accepting_inboxes(one.channel for timeline in timelines for one in timeline.channels)
        for rank, timeline in enumerate(timelines):
            own = [
                known.setdefault(channel, len(known)) if is_aligned and inbox_of(channel) not in accepting else -1
                for channel, is_aligned in timeline.channels
            ]
            self._channels.append(own)
            for call, (channel, sequence) in enumerate(zip(timeline.channel, timeline.sequence, strict=True)):
                if own[channel] >= 0:
                    self._at.setdefault((own[channel], sequence), []).append(Place(rank, call))

    def needed(self, rank: int, call: int) -> OrderedArrivals:
        """The calls before which a call cannot end, itself included. The clocks of all ranks are aligned by now."""
        timeline = self._timelines[rank]
        channel = self._channels[rank][timeline.channel[call]]
        if channel < 0:
            return OrderedArrivals(self._timelines, [Place(rank, call)])
        position = channel, timeline.sequence[call]
        waiting, is_root = self._waiting[rank][timeline.label[call]], timeline.root[call] == timeline.rank
        # Large sends of gloo and NCCL wait for the receiver too.
        if waiting in (Waiting.EVERYONE, Waiting.RECEIVER) or (waiting is Waiting.ROOT and is_root):
            return self._all_at(position)
        own = [Place(rank, call)]
        if waiting is Waiting.FOR_ROOT and not is_root:
            root = timeline.root[call]
            own += [place for place in self._at[position] if self._timelines[place.rank].rank == root]
        return OrderedArrivals(self._timelines, own)

    def _all_at(self, position: tuple[int, int]) -> OrderedArrivals:
        """All calls of a meeting, ordered once: each of thousands of members needs them."""
        found = self._whole.get(position)
        if found is None:
            found = self._whole[position] = OrderedArrivals(self._timelines, self._at[position])
        return found


@dataclass(frozen=True, slots=True)
class Release:
    """What let a rank go on.

    Attributes:
        last: The call whose arrival it needed last; None if what it waited for had been there before, and nearly over.
        arrived_ns: When that arrived, or when the rank began to wait.
        label: The call that it was in.
    """

    last: Place | None
    arrived_ns: int
    label: Label


class Walker:
    """Finds paths through the calls of all ranks."""

    def __init__(self, timelines: Sequence[PathTimeline], meetings: PathMeetings) -> None:
        """Walk through these; they have one clock."""
        self._timelines = timelines
        self._meetings = meetings
        self._releases: dict[tuple[int, tuple[int, ...]], Release] = {}

    def path(self, rank: int, begins: Sequence[int], end_ns: int) -> list[Piece]:
        """Walk from the end of steps to their begin.

        Args:
            rank: Index of the timeline of the rank that ended the last of them last.
            begins: When each rank had ended the step before the first.
            end_ns: When that rank ended the last.

        Returns:
            The pieces of the path, in order and without gaps.
        """
        pieces: list[Piece] = []
        unseen = [len(timeline.blocks) for timeline in self._timelines]
        time_ns, label, thread = end_ns, None, None
        while time_ns > begins[rank]:
            timeline = self._timelines[rank]
            place = timeline.block_before(time_ns, thread, unseen[rank])
            block = None if place is None else timeline.blocks[place]
            if place is None or block is None or block.release_ns <= begins[rank]:
                pieces.append(Piece(timeline.rank, begins[rank], time_ns, PathKind.COMPUTING, label))
                break
            unseen[rank] = place
            if block.release_ns < time_ns:
                pieces.append(Piece(timeline.rank, block.release_ns, time_ns, PathKind.COMPUTING, label))
            release = self.release(rank, block)
            following = rank if release.last is None else release.last.rank
            # The other rank may have ended the step before later than that; the path does not lead out of the steps.
            time_ns = min(max(release.arrived_ns, begins[following]), block.release_ns)
            if time_ns < block.release_ns:
                pieces.append(Piece(timeline.rank, time_ns, block.release_ns, PathKind.TRANSFER, release.label))
            thread = block.thread
            if release.last is not None:
                rank, thread = following, self._timelines[following].thread[release.last.call]
            label = self._label(release)
        pieces.reverse()
        return pieces

    def release(self, rank: int, block: Block) -> Release:
        """What let a rank go on after it was held up: looked up for the path, for its rank and for replays."""
        key = rank, block.calls
        found = self._releases.get(key)
        if found is None:
            found = self._releases[key] = self._look_up(rank, block)
        return found

    def _look_up(self, rank: int, block: Block) -> Release:
        timeline = self._timelines[rank]
        last, last_ns, own = None, None, block.calls[-1]
        for call, arrivals in zip(block.calls, self.needed(rank, block), strict=True):
            count = arrivals.until(block.release_ns)
            if count and (last_ns is None or arrivals.times[count - 1] > last_ns):
                last, last_ns, own = arrivals.places[count - 1], arrivals.times[count - 1], call
        label = timeline.labels[timeline.label[own]]
        if last is None or last_ns is None:
            return Release(None, block.begin_ns, label)
        exposed_ns = block.release_ns - block.begin_ns
        is_exposed = exposed_ns >= max(_LEAST_BLOCK_NS, _LEAST_EXPOSED * (block.release_ns - last_ns))
        if last_ns < block.begin_ns and not is_exposed:
            return Release(None, block.begin_ns, label)
        return Release(last, last_ns, label)

    def needed(self, rank: int, block: Block) -> Iterator[OrderedArrivals]:
        """For each call of a block the calls whose arrival it needed."""
        return (self._meetings.needed(rank, call) for call in block.calls)

    def _label(self, release: Release) -> Label:
        """The call before which the path goes on."""
        if release.last is None:
            return release.label
        timeline = self._timelines[release.last.rank]
        return timeline.labels[timeline.label[release.last.call]]
