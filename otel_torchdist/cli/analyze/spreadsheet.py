"""Rows as CSV, for spreadsheets and data frames: one line for each row, always with the same columns.

What does not distinguish rows, or is not known, is empty. Columns are only ever added, at the end.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Final

import msgspec

from otel_torchdist.statistics.model import Row

COLUMNS: Final = (
    *("operation", "group_key", "group_name", "group_members", "size_class"),
    *("call_site_function", "call_site_file", "call_site_line", "rank"),
    *("calls", "calls_of_a_rank_min", "calls_of_a_rank_max", "counts_differ", "open", "failed", "not_timed", "timed"),
    *("message_bytes", "time_ns", "median_ns", "p99_ns", "split", "wait_ns", "transfer_ns"),
    *("algorithm_bytes_per_second", "bus_bytes_per_second", "bandwidth_over"),
    *("compared", "last_rank", "last_rank_times", "last_rank_median_ns", "phase"),
)


def csv_of(rows: Iterable[Row]) -> str:
    """Write rows as CSV, with a line of column names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row) for row in rows)
    return text.getvalue()


def _cells(row: Row) -> list[object]:
    bandwidth, site = row.bandwidth, row.call_site
    last = row.latecomers[0] if row.latecomers else None
    group = (row.group.key, row.group.name, row.group.members or None) if row.group is not None else (None,) * 3
    line = (site.function, site.file, site.line) if site is not None else (None,) * 3
    least, most = row.calls_of_a_rank_min, row.calls_of_a_rank_max
    return [
        *(row.operation, *group, row.size_class, *line, row.rank),
        *(row.calls, least, most, int(row.counts_differ), row.open, row.failed, row.not_timed, row.timed),
        *(row.message_bytes, row.time_ns, row.median_ns, row.p99_ns, row.split, row.wait_ns, row.transfer_ns),
        *(msgspec.structs.astuple(bandwidth)[:2] if bandwidth is not None else (None,) * 2),
        bandwidth.over.value if bandwidth is not None else None,
        *(row.compared, *((last.rank, last.times, last.median_ns) if last is not None else (None,) * 3)),
        row.phase,
    ]
