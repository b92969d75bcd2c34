"""Walks back from the end of a step: what was the last thing that it had to wait for?

A rank that was held up went on when the last rank that it needed had arrived and the transfer was over. So the path
leads from there to that rank, through the computing of that rank to the call that had held it up before, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.critical_path.meetings import Arrivals, Meetings, Place
from otel_torchdist.critical_path.model import PathKind, Piece
from otel_torchdist.critical_path.timelines import Block, Label, Timeline

_LEAST_EXPOSED: Final = 0.1
"""If a rank waits for less than this share of a transfer, the transfer ran beside its computing and barely mattered."""
_LEAST_BLOCK_NS: Final = 50_000
"""A wait for something that is over already takes Python some 10 to 20 µs."""


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

    def __init__(self, timelines: Sequence[Timeline], meetings: Meetings) -> None:
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

    def needed(self, rank: int, block: Block) -> Iterator[Arrivals]:
        """For each call of a block the calls whose arrival it needed."""
        return (self._meetings.needed(rank, call) for call in block.calls)

    def _label(self, release: Release) -> Label:
        """The call before which the path goes on."""
        if release.last is None:
            return release.label
        timeline = self._timelines[release.last.rank]
        return timeline.labels[timeline.label[release.last.call]]
