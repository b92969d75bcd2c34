"""Statistics as a report has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls with something in common, as in `stats`.

    Attributes:
        operation: Its name.
        group: The group's name; None if groups do not distinguish rows.
        members: Its ranks.
        size_class: Class of the message size.
        site: Where it is called; None if that does not distinguish rows.
        calls: Calls of all ranks.
        fewest: Calls of the rank with the fewest.
        most: Calls of the rank with the most.
        differ: Whether members have not called it equally often.
        open: Calls that have not ended.
        failed: Calls that raised.
        bytes: Bytes that ranks contributed.
        time_ns: Sum of durations.
        median_ns: Median duration.
        p99_ns: 99th percentile.
        wait_ns: How long calls waited for others.
        transfer_ns: How long they took after that.
        bus: Bus bandwidth in bytes per second.
        is_bound: Whether that is a lower bound.
        compared: Operations at which the last arrival is known.
        last_rank: The rank that was last most often.
        last_times: How often.
        last_ns: How long the others waited for it then, at the median.
    """

    operation: str
    group: str | None
    members: int
    size_class: str
    site: str | None
    calls: int
    fewest: int
    most: int
    differ: bool
    open: int
    failed: int
    bytes: int
    time_ns: int
    median_ns: int | None
    p99_ns: int | None
    wait_ns: int
    transfer_ns: int
    bus: float | None
    is_bound: bool
    compared: int
    last_rank: int | None
    last_times: int
    last_ns: int | None


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
class Skew:
    """How well the calls of a group's members fit together.

    Attributes:
        group: Its name.
        is_point_to_point: Whether these are its sends and receives.
        members: Ranks.
        complete: Operations that all have left.
        open: Operations that all have entered and not all have left.
        incomplete: Operations that not all have entered.
        mismatched: Operations at which members called something different.
        median_ns: Time between the first arrival and the last, at the median.
        p99_ns: 99th percentile.
        max_ns: At most.
    """

    group: str
    is_point_to_point: bool
    members: int
    complete: int
    open: int
    incomplete: int
    mismatched: int
    median_ns: int | None
    p99_ns: int | None
    max_ns: int | None


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
