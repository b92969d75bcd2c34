"""For how long something was going on, however many things went on beside each other."""

from __future__ import annotations

from collections.abc import Iterable


class BusyTime:
    """Adds up the time that is covered by intervals, each moment once, as they become known.

    What is going on still counts up to now, so a number that is read in the middle of a long one has grown with it.

    Attributes:
        total_ns: The time so far.
        until_ns: All before has been counted or never will be. What becomes known later of the time before it is
            left out: at most what a poll was late.
    """

    __slots__ = ("total_ns", "until_ns")

    def __init__(self, total_ns: int = 0, until_ns: int = 0) -> None:
        """Go on from what has been counted."""
        self.total_ns = total_ns
        self.until_ns = until_ns

    def add(self, ended: Iterable[tuple[int, int]], open_since_ns: int | None, now_ns: int) -> None:
        """Count what has become known.

        Args:
            ended: Begin and end of each interval that is over.
            open_since_ns: Since when at least one has been going on; None when none is.
            now_ns: The same clock.
        """
        intervals = sorted(ended if open_since_ns is None else (*ended, (open_since_ns, now_ns)))
        total, until = self.total_ns, self.until_ns
        for begin, end in intervals:
            start = begin if begin > until else until
            # One that began after `now_ns` was taken ends before it begins.
            if end > start:
                total += end - start
                until = end
        self.total_ns, self.until_ns = total, until
