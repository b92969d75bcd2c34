"""Time that intervals cover."""

from __future__ import annotations

from collections.abc import Iterable


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the time that intervals (begin, end) cover, each moment once."""
    return sum(end - begin for begin, end in joined(intervals))


def joined(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join intervals that overlap or touch, in order; those that last no time are left out."""
    found: list[tuple[int, int]] = []
    since = until = 0
    for begin, end in sorted(intervals):
        if begin >= end:
            continue
        if since == until or begin > until:
            if since != until:
                found.append((since, until))
            since, until = begin, end
        elif end > until:
            until = end
    return [*found, (since, until)] if since != until else found
