"""Measures how much of its time a rank spends in communication, and how much of it communication blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.operations import UNMET, Operation


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
