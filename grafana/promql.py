"""Parts of queries: filters by the dashboard's variables, and limits on the number of series."""

from __future__ import annotations

from typing import Final

RUN: Final = 'job="$job", run="$run"'
OF_RANKS: Final = f'{RUN}, rank=~"$rank"'
OF_GROUPS: Final = f'{RUN}, group=~"$group"'
OF_MEMBERS: Final = f'{RUN}, group=~"$group", rank=~"$rank"'
OF_OPERATIONS: Final = f'{OF_GROUPS}, operation=~"$operation"'
OF_MEMBERS_OPERATIONS: Final = f'{OF_MEMBERS}, operation=~"$operation"'

WORST: Final = 3
"""Number of ranks with their own line."""
ROWS: Final = 32
"""Maximum rows of a table, and of each half of the heat map."""


def rate(metric: str, where: str) -> str:
    """Return the growth of a counter per second."""
    return f"rate({metric}{{{where}}}[$__rate_interval])"


def mean_of(total: str, count: str, where: str, by: str = "") -> str:
    """Return the growth of one counter per unit of another; without a value while the other does not grow."""
    clause = f" by ({by})" if by else ""
    return f"sum{clause} ({rate(total, where)}) / (sum{clause} ({rate(count, where)}) > 0)"


def percentile(share: float, buckets: str, where: str, by: str = "") -> str:
    """Return a percentile from a histogram's buckets, for each value of the labels in `by`."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) ({rate(buckets, where)}))"


def largest(count: int, series: str, by: str) -> str:
    """Return the currently largest series, with only the labels in `by`."""
    return f"topk({count}, max by ({by}) ({series}))"


def highest(series: str) -> str:
    """Return the highest value of each series in the dashboard's time range, equal at every step of a query."""
    return f"max_over_time({series}[$__range] @ end())"


def worst_in_range(count: int, series: str, by: str) -> str:
    """Return the series that were the highest in the time range, over the whole range.

    `topk` alone chooses again at every step, so it could return many more series.
    """
    return f"max by ({by}) ({series}) and on ({by}) topk({count}, max by ({by}) ({highest(series)}))"


def lowest_in_range(count: int, series: str, by: str) -> str:
    """Return the series that were the lowest in the time range, over the whole range."""
    lowest = f"min_over_time({series}[$__range] @ end())"
    return f"min by ({by}) ({series}) and on ({by}) bottomk({count}, min by ({by}) ({lowest}))"
