"""Statistics as a report has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankColumns:
    """All ranks, in columns.

    Attributes:
        rank: Global ranks, ascending.
        host: Which of `World.host_names`; -1 if that is not known.
        calls: Its calls.
        open: Those that have not ended.
        lost: Calls that are missing.
        bytes: Bytes that it contributed.
        span_ns: From its first call to its last.
        communicating_ns: Time with a call in flight; None if that is not known.
        waiting_ns: Time in which it waited for others; None likewise.
        compared: Operations at which the last arrival is known.
        came_last: At how many of them it arrived last.
        steps: Steps whose length is known.
        step_ns: Their median length; None without any.
        step_p99_ns: 99th percentile.
    """

    rank: tuple[int, ...]
    host: tuple[int, ...]
    calls: tuple[int, ...]
    open: tuple[int, ...]
    lost: tuple[int, ...]
    bytes: tuple[int, ...]
    span_ns: tuple[int, ...]
    communicating_ns: tuple[int | None, ...]
    waiting_ns: tuple[int | None, ...]
    compared: tuple[int, ...]
    came_last: tuple[int, ...]
    steps: tuple[int, ...]
    step_ns: tuple[int | None, ...]
    step_p99_ns: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """How long steps took, over all ranks. Columns; neighbouring steps share an entry where there are many.

    Attributes:
        first: First step of each entry.
        last: Last step of each entry.
        least_ns: The shortest.
        median_ns: The median.
        most_ns: The longest.
        slowest: The rank with the longest.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]
    least_ns: tuple[int, ...]
    median_ns: tuple[int, ...]
    most_ns: tuple[int, ...]
    slowest: tuple[int, ...]
