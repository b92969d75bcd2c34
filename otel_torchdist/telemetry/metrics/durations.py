"""Histograms of durations, with exemplars that link to traces; and shares of a rank's time."""

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
"""Inclusive upper bounds of the buckets in seconds, from a small gloo call to a checkpoint's barrier."""


class DurationHistogram:
    """A histogram of durations.

    Attributes:
        counts: Number of durations in each bucket; the last bucket is above all bounds.
        sum_s: Sum of the durations in seconds.
        exemplars: The newest duration in an exported trace, by bucket.
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

    def add_exemplar(self, exemplar: Exemplar) -> None:
        """Keep an exemplar for a counted duration if it is the newest in its bucket."""
        bucket = bisect_left(BOUNDS_S, exemplar.seconds)
        current = self.exemplars.get(bucket)
        if current is None or current.wall_s < exemplar.wall_s:
            self.exemplars[bucket] = exemplar

    def add(self, other: DurationHistogram) -> None:
        """Add all durations of another histogram."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s
        for exemplar in other.exemplars.values():
            self.add_exemplar(exemplar)

    def copy(self) -> DurationHistogram:
        """Return an independent copy."""
        copied = DurationHistogram()
        copied.counts, copied.sum_s = list(self.counts), self.sum_s
        copied.exemplars = dict(self.exemplars)
        return copied


@dataclass(slots=True, eq=False)
class TimedMessages:
    """Operations with known durations.

    Attributes:
        durations: Histogram of the durations.
        message_bytes: Bytes contributed by ranks.
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
    """A duration and the trace that contains it.

    Attributes:
        trace_id: Id of an exported trace.
        seconds: The duration.
        wall_s: Its end, in seconds since the epoch.
    """

    trace_id: int
    seconds: float
    wall_s: float


class BusyTime:
    """The total time covered by intervals, without counting overlaps twice. Intervals are added as they become known.

    Open intervals count up to now, so the total grows during a long interval.

    Attributes:
        total_ns: The total so far.
        until_ns: Time up to which the total is final. Earlier intervals that become known later are ignored. The error
            is at most the delay of one poll.
    """

    __slots__ = ("total_ns", "until_ns")

    def __init__(self, total_ns: int = 0, until_ns: int = 0) -> None:
        """Continue from an earlier total."""
        self.total_ns = total_ns
        self.until_ns = until_ns

    def add(self, ended: Iterable[tuple[int, int]], open_since_ns: int | None, now_ns: int) -> None:
        """Add intervals.

        Args:
            ended: Start and end of each ended interval.
            open_since_ns: Start of the oldest open interval; None without open intervals.
            now_ns: Current time of the same clock.
        """
        intervals = sorted(ended if open_since_ns is None else (*ended, (open_since_ns, now_ns)))
        total, until = self.total_ns, self.until_ns
        for start, end in intervals:
            uncounted_from = start if start > until else until
            # If an open interval began after `now_ns` was read, its end is before its start.
            if end > uncounted_from:
                total += end - uncounted_from
                until = end
        self.total_ns, self.until_ns = total, until


@dataclass(slots=True)
class TimeShares:
    """Communication time and blocked time of one rank.

    Attributes:
        communicating: Time with at least one operation in flight. Here, an operation counts from its entry, from its
            start on the device, or from the wait if only a wait shows its end.
        blocked: Time with at least one thread inside a call or a wait.
    """

    communicating: BusyTime = field(default_factory=BusyTime)
    blocked: BusyTime = field(default_factory=BusyTime)

    def consume(self, ended: Iterable[Operation], still_open: Iterable[Operation], now_ns: int) -> None:
        """Add the operations of a poll.

        Args:
            ended: Operations whose end became known.
            still_open: All operations in flight.
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
            start_ns = operation.in_flight_since_ns
            if start_ns is not None and operation.how not in UNMET:
                in_flight.append((start_ns, end_ns))
        open_operations = [operation for operation in still_open if operation.kind is RecordKind.OPERATION]
        starts_ns = (operation.waiting_since_ns for operation in open_operations)
        oldest_ns = min((start_ns for start_ns in starts_ns if start_ns is not None), default=None)
        self.communicating.add(in_flight, oldest_ns, now_ns)
        blocked_since = (_blocked_since_ns(operation) for operation in open_operations if operation.is_blocking)
        self.blocked.add(blocked, min(blocked_since, default=None), now_ns)


def _blocked_since_ns(operation: Operation) -> int:
    """Return when the blocked thread entered the call or the wait."""
    if operation.returned_ns is None or operation.wait_entered_ns is None:
        return operation.entered_ns
    return operation.wait_entered_ns
