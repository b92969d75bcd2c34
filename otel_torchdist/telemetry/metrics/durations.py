"""Durations in the buckets of all our metrics, with exemplars that link to traces; and shares of a rank's time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.operations import UNMET, Operation
from otel_torchdist.tape.layout import clipped

BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005,
    0.001, 0.0025, 0.005,
    0.01, 0.025, 0.05,
    0.1, 0.25, 0.5,
    1.0, 2.5, 5.0,
    10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip
"""Upper bounds of the buckets in seconds, inclusive: from a small gloo call to a checkpoint's barrier."""


class DurationHistogram:
    """Counts durations by bucket.

    Attributes:
        counts: Durations in each bucket; the last one holds those above all bounds.
        sum_s: Their sum in seconds.
        exemplars: By bucket, the newest of its durations that is in an exported trace.
    """

    __slots__ = ("counts", "exemplars", "sum_s")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BOUNDS_S) + 1)
        self.sum_s: float = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def exemplify(self, exemplar: Exemplar) -> None:
        """Record where one of the counted durations can be seen."""
        bucket = bisect_left(BOUNDS_S, exemplar.seconds)
        known = self.exemplars.get(bucket)
        if known is None or known.wall_s < exemplar.wall_s:
            self.exemplars[bucket] = exemplar

    def add(self, other: DurationHistogram) -> None:
        """Add all durations of another histogram."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s
        for exemplar in other.exemplars.values():
            self.exemplify(exemplar)

    def copy(self) -> DurationHistogram:
        """Return an independent copy."""
        copied = DurationHistogram()
        copied.counts, copied.sum_s = list(self.counts), self.sum_s
        copied.exemplars = dict(self.exemplars)
        return copied


@dataclass(slots=True, eq=False)
class TimedMessages:
    """Operations whose durations are known.

    Attributes:
        durations: How long they took.
        message_bytes: Bytes that ranks contributed to them.
    """

    durations: DurationHistogram = field(default_factory=DurationHistogram)
    message_bytes: int = 0

    def observe(self, seconds: float, message_bytes: int) -> None:
        """Count one operation."""
        self.durations.observe(seconds)
        self.message_bytes = clipped(self.message_bytes + message_bytes)

    def add(self, other: TimedMessages) -> None:
        """Add all operations of another object."""
        self.durations.add(other.durations)
        self.message_bytes = clipped(self.message_bytes + other.message_bytes)

    def copy(self) -> TimedMessages:
        """Return an independent copy."""
        return TimedMessages(self.durations.copy(), self.message_bytes)


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One duration and the trace in which it can be seen.

    Attributes:
        trace_id: A trace that has been exported.
        seconds: The duration.
        wall_s: When it ended, in seconds since the epoch.
    """

    trace_id: int
    seconds: float
    wall_s: float


class BusyTime:
    """Adds up the time covered by intervals, each moment once, as they become known.

    Ongoing intervals count up to now, so a number that is read in the middle of a long one has grown with it.

    Attributes:
        total_ns: The time so far.
        until_ns: Time before this has been counted or never will be. What becomes known later about that time is left
            out: at most the delay of a poll.
    """

    __slots__ = ("total_ns", "until_ns")

    def __init__(self, total_ns: int = 0, until_ns: int = 0) -> None:
        """Continue from what has been counted."""
        self.total_ns = total_ns
        self.until_ns = until_ns

    def add(self, ended: Iterable[tuple[int, int]], open_since_ns: int | None, now_ns: int) -> None:
        """Count intervals that have become known.

        Args:
            ended: Begin and end of each interval that is over.
            open_since_ns: Since when at least one has been open; None if none is.
            now_ns: Current time of the same clock.
        """
        intervals = sorted(ended if open_since_ns is None else (*ended, (open_since_ns, now_ns)))
        total, until = self.total_ns, self.until_ns
        for begin, end in intervals:
            start = begin if begin > until else until
            # An interval that began after `now_ns` was taken ends before it begins.
            if end > start:
                total += end - start
                until = end
        self.total_ns, self.until_ns = total, until


@dataclass(slots=True)
class TimeShares:
    """Communication time and blocked time of one rank.

    Attributes:
        communicating: Time in which at least one operation was in flight: since it was entered, since its device began
            it, or, if only a wait shows its end, since the wait.
        blocked: Time in which at least one thread was inside a call or inside a wait.
    """

    communicating: BusyTime = field(default_factory=BusyTime)
    blocked: BusyTime = field(default_factory=BusyTime)

    def consume(self, ended: Iterable[Operation], still_open: Iterable[Operation], now_ns: int) -> None:
        """Count what a poll has found.

        Args:
            ended: Operations whose end became known.
            still_open: All operations that have not ended.
            now_ns: Monotonic clock.
        """
        in_flight: list[tuple[int, int]] = []
        blocked: list[tuple[int, int]] = []
        for operation in ended:
            end_ns = operation.completed_ns
            if end_ns is None or operation.kind is not RecordKind.OPERATION:
                continue
            returned_ns, wait_ns = operation.returned_ns, operation.wait_entered_ns
            blocked.append((operation.entered_ns, end_ns if returned_ns is None else returned_ns))
            if wait_ns is not None:
                blocked.append((wait_ns, operation.wait_returned_ns or end_ns))
            begin_ns = operation.in_flight_since_ns
            if begin_ns is not None and operation.how not in UNMET:
                in_flight.append((begin_ns, end_ns))
        waited_for = [one for one in still_open if one.kind is RecordKind.OPERATION]
        since = (one.waiting_since_ns for one in waited_for)
        self.communicating.add(in_flight, min((begin for begin in since if begin is not None), default=None), now_ns)
        inside = (_inside_since_ns(one) for one in waited_for if one.is_blocking)
        self.blocked.add(blocked, min(inside, default=None), now_ns)


def _inside_since_ns(operation: Operation) -> int:
    """Since when a thread has been inside the call, or inside the wait."""
    if operation.returned_ns is None or operation.wait_entered_ns is None:
        return operation.entered_ns
    return operation.wait_entered_ns
