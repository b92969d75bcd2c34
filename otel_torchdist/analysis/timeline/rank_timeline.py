"""What is drawn of one rank: its calls in columns, its steps and activities."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from otel_torchdist.model.calls import OperationId
from otel_torchdist.sources.history.call_table import OPEN, RankCalls


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a run that is to be drawn.

    Attributes:
        ranks: The ranks; None for all.
        steps: First and last step; None for all.
        window_ns: Begin and end of the time, since the epoch; None for all.
    """

    ranks: frozenset[int] | None = None
    steps: tuple[int, int] | None = None
    window_ns: tuple[int, int] | None = None

    def has_step(self, step: int) -> bool:
        """Return whether a step is to be drawn."""
        return self.steps is None or self.steps[0] <= step <= self.steps[1]

    def has_time(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether something is to be drawn that lasted from one time to another, or is open."""
        if self.window_ns is None:
            return True
        return begin_ns <= self.window_ns[1] and (end_ns == OPEN or end_ns >= self.window_ns[0])


@dataclass(frozen=True, slots=True)
class DrawnSpan:
    """A step, or an activity.

    Attributes:
        name: Its name.
        begin_ns: When it began, since the epoch.
        end_ns: When it ended, or `OPEN`.
        step: Its step.
    """

    name: str
    begin_ns: int
    end_ns: int
    step: int


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """The drawing of one rank. Times are since the epoch, those of its calls too.

    Attributes:
        calls: Its calls that are drawn. Nobody may read the columns `returned`, `waited`, `resumed` and `known`.
        waits: How long its rank waited for each, or `UNKNOWN`.
        shift_ns: What was added to its times.
        until_ns: Its last sign of life; 0 if that is not known.
        groups: By the name of their track, the places of its calls, by ascending begin.
        steps: Its steps, ascending.
        activities: Its activities, such as steps of its optimizer, by ascending begin.
        checkpoints: Its checkpoints, by ascending begin.
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
        """The last of its times."""
        spans = [max(span.begin_ns, span.end_ns) for span in (*self.steps, *self.activities, *self.checkpoints)]
        return max([self.until_ns, max(self.calls.begun, default=0), max(self.calls.ended, default=0), *spans])


@dataclass(frozen=True, slots=True)
class DrawnStall:
    """A stall, as the verdict has it.

    Attributes:
        text: The verdict's sentence.
        since_ns: When the first rank began to wait, on the clock of the ranks.
        blamed: Ranks that hold the job up.
        waiting: Ranks that wait.
        operation_id: The operation in which they wait.
    """

    text: str
    since_ns: int
    blamed: tuple[int, ...]
    waiting: tuple[int, ...]
    operation_id: OperationId


def lanes_of(places: Iterable[int], begin: Sequence[int], end: Sequence[int | None]) -> list[list[int]]:
    """Assign overlapping slices to lanes, so that the slices of a lane are disjoint and a track can show them.

    Args:
        places: The slices, by ascending begin. Each gets the first lane that is free then.
        begin: When each of all slices begins.
        end: When each ends; `OPEN` or None if it has not.

    Returns:
        The places in each lane, in order.
    """
    lanes: list[list[int]] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for place in places:
        while busy and busy[0][0] <= begin[place]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, len(lanes))
            lanes.append([])
        lane = heapq.heappop(free)
        lanes[lane].append(place)
        end_ns = end[place]
        if end_ns is not None and end_ns != OPEN:  # a lane with an open slice is never free again
            heapq.heappush(busy, (end_ns, lane))
    return lanes
