"""The rows of statistics: their order, and their form as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec
import typer

from otel_torchdist.analysis.statistics.grouping import GroupingKey, keys_named
from otel_torchdist.analysis.statistics.result import Row


class Order(str, Enum):
    """An order of rows."""

    TIME = "time"
    CALLS = "calls"
    BYTES = "bytes"
    WAIT = "wait"
    MEDIAN = "median"
    NAME = "name"


def ordered(rows: Iterable[Row], order: Order) -> tuple[Row, ...]:
    """Return rows in an order: names ascending, numbers descending."""
    by_name = tuple(sorted(rows, key=_name))
    if order is Order.NAME:
        return by_name
    return tuple(sorted(by_name, key=lambda row: _measure(row, order), reverse=True))


def _measure(row: Row, order: Order) -> int:
    if order is Order.CALLS:
        return row.calls
    if order is Order.BYTES:
        return row.message_bytes
    if order is Order.WAIT:
        return row.wait_ns
    return (row.median_ns or 0) if order is Order.MEDIAN else row.estimated_ns


def _name(row: Row) -> tuple[object, ...]:
    group, site = row.group, row.call_site
    return (
        group.name if group is not None else "",
        group.key if group is not None else "",
        row.operation or "",
        row.size_class or "",
        (site.function, site.file, site.line) if site is not None else (),
        row.rank or 0,
        row.phase or "",
    )


def keys_of(text: str) -> tuple[GroupingKey, ...]:
    """Return the keys that distinguish rows, from a list such as `operation,site`.

    Raises:
        typer.BadParameter: A word does not name a key.
    """
    try:
        return keys_named(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--by") from error


COLUMNS: Final = (
    *("operation", "group_key", "group_name", "group_members", "size_class"),
    *("call_site_function", "call_site_file", "call_site_line", "rank"),
    *("calls", "calls_of_a_rank_min", "calls_of_a_rank_max", "counts_differ", "open", "failed", "not_timed", "timed"),
    *("message_bytes", "time_ns", "median_ns", "p99_ns", "split", "wait_ns", "transfer_ns"),
    *("algorithm_bytes_per_second", "bus_bytes_per_second", "bandwidth_over"),
    *("compared", "last_rank", "last_rank_times", "last_rank_median_ns", "phase"),
)


def csv_of(rows: Iterable[Row]) -> str:
    """Format rows as CSV, with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row) for row in rows)
    return text.getvalue()


def _cells(row: Row) -> list[object]:
    bandwidth, site = row.bandwidth, row.call_site
    last = row.latecomers[0] if row.latecomers else None
    group = (row.group.key, row.group.name, row.group.members or None) if row.group is not None else (None,) * 3
    site_cells = (site.function, site.file, site.line) if site is not None else (None,) * 3
    least, most = row.calls_of_a_rank_min, row.calls_of_a_rank_max
    return [
        *(row.operation, *group, row.size_class, *site_cells, row.rank),
        *(row.calls, least, most, int(row.counts_differ), row.open, row.failed, row.not_timed, row.timed),
        *(row.message_bytes, row.time_ns, row.median_ns, row.p99_ns, row.split, row.wait_ns, row.transfer_ns),
        *(msgspec.structs.astuple(bandwidth)[:2] if bandwidth is not None else (None,) * 2),
        bandwidth.over.value if bandwidth is not None else None,
        *(row.compared, *((last.rank, last.times, last.median_ns) if last is not None else (None,) * 3)),
        row.phase,
    ]
