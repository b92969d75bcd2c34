"""Pieces of queries: filters by the dashboard's variables, and bounds on how many series come back."""

from __future__ import annotations

from typing import Final

RUN: Final = 'job="$job", run="$run"'
OF_RANKS: Final = f'{RUN}, rank=~"$rank"'
OF_GROUPS: Final = f'{RUN}, group=~"$group"'
OF_MEMBERS: Final = f'{RUN}, group=~"$group", rank=~"$rank"'
OF_OPERATIONS: Final = f'{OF_GROUPS}, operation=~"$operation"'
OF_MEMBERS_OPERATIONS: Final = f'{OF_MEMBERS}, operation=~"$operation"'

WORST: Final = 3
"""Ranks that have a line of their own."""
ROWS: Final = 32
"""Rows of a table, and of each half of the heat map."""


def rate(metric: str, where: str) -> str:
    """How fast a counter grows, per second."""
    return f"rate({metric}{{{where}}}[$__rate_interval])"


def mean_of(total: str, count: str, where: str, by: str = "") -> str:
    """Growth of one counter per unit of another; no value while the other does not grow."""
    clause = f" by ({by})" if by else ""
    return f"sum{clause} ({rate(total, where)}) / (sum{clause} ({rate(count, where)}) > 0)"


def percentile(share: float, buckets: str, where: str, by: str = "") -> str:
    """A percentile from a histogram's buckets, for each value of the labels in `by`."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) ({rate(buckets, where)}))"


def largest(count: int, series: str, by: str) -> str:
    """The largest series now, with no other labels than `by`."""
    return f"topk({count}, max by ({by}) ({series}))"


def highest(series: str) -> str:
    """The highest value of each series in the dashboard's time range, the same at every step of a query."""
    return f"max_over_time({series}[$__range] @ end())"


def worst_in_range(count: int, series: str, by: str) -> str:
    """The series that were the highest in the time range, over the whole range.

    `topk` alone chooses anew at every step, so that many more series could be returned.
    """
    return f"max by ({by}) ({series}) and on ({by}) topk({count}, max by ({by}) ({highest(series)}))"


def lowest_in_range(count: int, series: str, by: str) -> str:
    """The series that were the lowest in the time range, over the whole range."""
    lowest = f"min_over_time({series}[$__range] @ end())"
    return f"min by ({by}) ({series}) and on ({by}) bottomk({count}, min by ({by}) ({lowest}))"
