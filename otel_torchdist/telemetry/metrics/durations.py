"""Durations in the buckets of all our metrics, with exemplars that link to traces."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

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
