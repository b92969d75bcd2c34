"""The drawing of one rank: calls in columns, steps and activities."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from otel_torchdist.model.calls import OperationId
from otel_torchdist.sources.history.call_table import OPEN, RankCalls


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a run to draw.

    Attributes:
        ranks: The ranks; None for all.
        steps: First and last step; None for all.
        window_ns: Start and end, in nanoseconds since the epoch; None for all.
    """

    ranks: frozenset[int] | None = None
    steps: tuple[int, int] | None = None
    window_ns: tuple[int, int] | None = None

    def has_step(self, step: int) -> bool:
        """Return whether to draw a step."""
        return self.steps is None or self.steps[0] <= step <= self.steps[1]

    def has_time(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether to draw an interval, whose end may be `OPEN`."""
        if self.window_ns is None:
            return True
        return begin_ns <= self.window_ns[1] and (end_ns == OPEN or end_ns >= self.window_ns[0])


@dataclass(frozen=True, slots=True)
class DrawnSpan:
    """A step or an activity to draw.

    Attributes:
        begin_ns: Start, in nanoseconds since the epoch.
        end_ns: End, or `OPEN`.
    """

    name: str
    begin_ns: int
    end_ns: int
    step: int


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """The drawing of one rank. All times are in nanoseconds since the epoch, including the times in `calls`.

    Attributes:
        calls: The calls to draw. The columns `returned`, `wait_entered`, `wait_returned` and `known_times` are dropped.
        waits: Nanoseconds that the rank waited for each call, or `UNKNOWN`.
        shift_ns: Nanoseconds that were added to the rank's times.
        until_ns: The last sign of life; 0 if unknown.
        groups: For each track, by name: indices of its calls, by ascending start.
        steps: Steps, ascending.
        activities: Activities, such as optimizer steps, by ascending start.
        checkpoints: Checkpoints, by ascending start.
    """

    calls: RankCalls
    waits: array[int]
    shift_ns: int
    until_ns: int
    groups: Mapping[str, array[int]]
    steps: tuple[DrawnSpan, ...]
    activities: tuple[DrawnSpan, ...]
    checkpoints: tuple[DrawnSpan, ...] = ()

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.calls.rank

    @property
    def size(self) -> int:
        """The number of slices."""
        return len(self.calls) + len(self.steps) + len(self.activities) + len(self.checkpoints)

    @property
    def newest_ns(self) -> int:
        """The latest time of the rank."""
        spans = [max(span.begin_ns, span.end_ns) for span in (*self.steps, *self.activities, *self.checkpoints)]
        return max([self.until_ns, max(self.calls.started, default=0), max(self.calls.ended, default=0), *spans])


@dataclass(frozen=True, slots=True)
class DrawnStall:
    """A stall to draw, from its verdict.

    Attributes:
        text: The verdict's sentence.
        since_ns: When the first rank began to wait, on the ranks' clock.
        blamed: Ranks that hold up the job.
        waiting: Ranks that wait.
        operation_id: The operation that they wait in.
    """

    text: str
    since_ns: int
    blamed: tuple[int, ...]
    waiting: tuple[int, ...]
    operation_id: OperationId


def lanes_of(indices: Iterable[int], begin: Sequence[int], end: Sequence[int | None]) -> list[list[int]]:
    """Assign overlapping slices to lanes, so that the slices of a lane are disjoint and a track can show them.

    Args:
        indices: Indices of the slices to assign, by ascending start. Each gets the first free lane.
        begin: Start of every slice.
        end: End of every slice; `OPEN` or None if it has not ended.

    Returns:
        The indices in each lane, in order.
    """
    lanes: list[list[int]] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for index in indices:
        while busy and busy[0][0] <= begin[index]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, len(lanes))
            lanes.append([])
        lane = heapq.heappop(free)
        lanes[lane].append(index)
        end_ns = end[index]
        if end_ns is not None and end_ns != OPEN:  # a lane with an open slice is never free again
            heapq.heappush(busy, (end_ns, lane))
    return lanes
