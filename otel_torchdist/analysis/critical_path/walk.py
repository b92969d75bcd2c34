"""Walks the critical path backwards from the end of a step.

A blocked rank continues once the last rank that it needs has arrived and the transfer is over. So the path crosses to
that last rank, follows its computing back to the previous call that blocked it, and so on.
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

_MIN_EXPOSED_SHARE: Final = 0.1
"""Least share of a transfer that a rank must wait for. Below it, the transfer overlapped with computing."""
_MIN_BLOCK_NS: Final = 50_000
"""Shorter blocks do not count as waits: in Python, a wait for a completed operation takes 10 to 20 µs."""


class CallIndex(NamedTuple):
    """The index of a call.

    Attributes:
        rank: Index of the rank's timeline.
        call: Index of the call in the timeline's columns.
    """

    rank: int
    call: int


class OrderedArrivals:
    """Calls in order of arrival.

    Attributes:
        indices: The calls. Calls at the same time are ordered by descending rank.
        times: Arrival times of the calls.
    """

    __slots__ = ("indices", "times")

    def __init__(self, timelines: Sequence[PathTimeline], indices: Sequence[CallIndex]) -> None:
        """Sort calls by arrival."""
        ordered = sorted((timelines[rank].arrived[call], -rank, call) for rank, call in indices)
        self.indices = [CallIndex(-rank, call) for _, rank, call in ordered]
        self.times = array("q", [time_ns for time_ns, _, _ in ordered])

    def until(self, time_ns: int) -> int:
        """Return the number of arrivals up to a moment."""
        return bisect_right(self.times, time_ns)


class PathMeetings:
    """The calls of all ranks by their positions in channels."""

    def __init__(self, timelines: Sequence[PathTimeline]) -> None:
        """Index the calls of all ranks."""
        self._timelines = timelines
        self._channels: list[list[int]] = []
        self._at: dict[tuple[int, int], list[CallIndex]] = {}
        self._arrivals_at: dict[tuple[int, int], OrderedArrivals] = {}
        self._waiting = [[waiting_in(label.operation) for label in timeline.labels] for timeline in timelines]
        known: dict[Channel, int] = {}
        accepting = accepting_inboxes(entry.channel for timeline in timelines for entry in timeline.channels)
        for rank, timeline in enumerate(timelines):
            numbers = [
                known.setdefault(channel, len(known)) if is_aligned and inbox_of(channel) not in accepting else -1
                for channel, is_aligned in timeline.channels
            ]
            self._channels.append(numbers)
            for call, (channel, sequence) in enumerate(zip(timeline.channel, timeline.sequence, strict=True)):
                if numbers[channel] >= 0:
                    self._at.setdefault((numbers[channel], sequence), []).append(CallIndex(rank, call))

    def needed(self, rank: int, call: int) -> OrderedArrivals:
        """Return the calls that must arrive before a call can end, itself included. All clocks must be aligned."""
        timeline = self._timelines[rank]
        channel = self._channels[rank][timeline.channel[call]]
        if channel < 0:
            return OrderedArrivals(self._timelines, [CallIndex(rank, call)])
        position = channel, timeline.sequence[call]
        waiting, is_root = self._waiting[rank][timeline.label[call]], timeline.root[call] == timeline.rank
        # Large sends of gloo and NCCL wait for the receiver too.
        if waiting in (Waiting.EVERYONE, Waiting.RECEIVER) or (waiting is Waiting.ROOT and is_root):
            return self._all_at(position)
        indices = [CallIndex(rank, call)]
        if waiting is Waiting.FOR_ROOT and not is_root:
            root = timeline.root[call]
            indices += [index for index in self._at[position] if self._timelines[index.rank].rank == root]
        return OrderedArrivals(self._timelines, indices)

    def _all_at(self, position: tuple[int, int]) -> OrderedArrivals:
        """Return all calls at a position. They are sorted once, because each of thousands of members needs them."""
        arrivals = self._arrivals_at.get(position)
        if arrivals is None:
            arrivals = self._arrivals_at[position] = OrderedArrivals(self._timelines, self._at[position])
        return arrivals


@dataclass(frozen=True, slots=True)
class Release:
    """The arrival that released a blocked rank.

    Attributes:
        last: The last needed call; None if all had arrived before and the transfer was nearly over.
        arrived_ns: When the last needed call arrived, or when the rank began to wait.
        label: The call that blocked the rank.
    """

    last: CallIndex | None
    arrived_ns: int
    label: Label


class Walker:
    """Finds critical paths through the calls of all ranks."""

    def __init__(self, timelines: Sequence[PathTimeline], meetings: PathMeetings) -> None:
        """Prepare to walk through timelines that are on one clock."""
        self._timelines = timelines
        self._meetings = meetings
        self._releases: dict[tuple[int, tuple[int, ...]], Release] = {}

    def path(self, rank: int, begins: Sequence[int], end_ns: int) -> list[Piece]:
        """Walk from the end of the last step to the start of the first.

        Args:
            rank: Index of the timeline of the rank that was the last to end the last step.
            begins: When each rank ended the step before the first.
            end_ns: When that rank ended the last step.

        Returns:
            The pieces of the path, in order and without gaps.
        """
        pieces: list[Piece] = []
        unvisited = [len(timeline.blocks) for timeline in self._timelines]
        time_ns, label, thread = end_ns, None, None
        while time_ns > begins[rank]:
            timeline = self._timelines[rank]
            index = timeline.block_before(time_ns, thread, unvisited[rank])
            block = None if index is None else timeline.blocks[index]
            if index is None or block is None or block.release_ns <= begins[rank]:
                pieces.append(Piece(timeline.rank, begins[rank], time_ns, PathKind.COMPUTING, label))
                break
            unvisited[rank] = index
            if block.release_ns < time_ns:
                pieces.append(Piece(timeline.rank, block.release_ns, time_ns, PathKind.COMPUTING, label))
            release = self.release(rank, block)
            predecessor = rank if release.last is None else release.last.rank
            # The needed call may lie in the step before the first; clip the path to the steps.
            time_ns = min(max(release.arrived_ns, begins[predecessor]), block.release_ns)
            if time_ns < block.release_ns:
                pieces.append(Piece(timeline.rank, time_ns, block.release_ns, PathKind.TRANSFER, release.label))
            thread = block.thread
            if release.last is not None:
                rank, thread = predecessor, self._timelines[predecessor].thread[release.last.call]
            label = self._label(release)
        pieces.reverse()
        return pieces

    def release(self, rank: int, block: Block) -> Release:
        """Return the arrival that released a blocked rank. Cached: path, waits and replays all need it."""
        key = rank, block.calls
        release = self._releases.get(key)
        if release is None:
            release = self._releases[key] = self._find_release(rank, block)
        return release

    def _find_release(self, rank: int, block: Block) -> Release:
        """Find the last needed arrival before the end of a block, over all calls of the block."""
        timeline = self._timelines[rank]
        last, last_ns, blocking = None, None, block.calls[-1]
        for call, arrivals in zip(block.calls, self.needed(rank, block), strict=True):
            count = arrivals.until(block.release_ns)
            if count and (last_ns is None or arrivals.times[count - 1] > last_ns):
                last, last_ns, blocking = arrivals.indices[count - 1], arrivals.times[count - 1], call
        label = timeline.labels[timeline.label[blocking]]
        if last is None or last_ns is None:
            return Release(None, block.begin_ns, label)
        exposed_ns = block.release_ns - block.begin_ns
        is_exposed = exposed_ns >= max(_MIN_BLOCK_NS, _MIN_EXPOSED_SHARE * (block.release_ns - last_ns))
        if last_ns < block.begin_ns and not is_exposed:
            return Release(None, block.begin_ns, label)
        return Release(last, last_ns, label)

    def needed(self, rank: int, block: Block) -> Iterator[OrderedArrivals]:
        """Return, for each call of a block, the calls that had to arrive."""
        return (self._meetings.needed(rank, call) for call in block.calls)

    def _label(self, release: Release) -> Label:
        """Return the label of the predecessor on the path."""
        if release.last is None:
            return release.label
        timeline = self._timelines[release.last.rank]
        return timeline.labels[timeline.label[release.last.call]]
