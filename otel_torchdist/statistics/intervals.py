"""Time that intervals cover."""

from __future__ import annotations

from collections.abc import Iterable


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the time that intervals (begin, end) cover, each moment once."""
    total = until = 0
    for begin, end in sorted(intervals):
        start = max(begin, until)
        if end > start:
            total += end - start
            until = end
    return total
