"""Statistics as JSON, in the document of an analysis.

- `by`: what distinguishes the rows: some of `operation`, `group`, `size`, `site`, `rank`, `phase`.
- `differences`: where members of a group have not called an operation equally often: `group`, `operation`, `ends`
  (null, or sender and receiver), `first_sequence` (from which on calls count, because some before it are missing; else
  null), `counts` (`rank`, `operation`, `calls`, `open`).
- `rows`: calls by what they have in common: `operation`, `group`, `size_class`, `call_site` (`function`, `file`,
  `line`), `rank` and `phase` (`backward`, `outside_backward`, `unknown`), null if that does not distinguish rows; then
  - `calls`, `calls_by_rank`, `counts_differ`, `open`, `failed`, `not_timed`, `timed`, `message_bytes`,
  - `time_ns`, `median_ns`, `p99_ns` of the timed calls,
  - `split`, `wait_ns`, `transfer_ns` of those of them for which the awaited arrival is known,
  - `bandwidth`: null, or `algorithm_bytes_per_second`, `bus_bytes_per_second`, and `over`: `transfer`, or `duration`
    if only that is known,
  - `compared`: operations at which one rank arrived last, and `latecomers`: `rank`, `times`, `median_ns`.
- `ranks`: `rank`, `host`, `calls`, `open`, `failed`, `lost`, `message_bytes`, `from`, `until`, `span_ns`,
  `communicating_ns`, `waiting_ns`, `compared`, `came_last`.
- `groups`: `group`, `point_to_point`, `members`, `known`, `first_sequence`, `last_sequence`, `complete`, `open`,
  `incomplete`, `mismatched`, `unfinished` (the newest: `sequence`, `ends`, `operations`, `missing`, `open`), `skewed`,
  `skew_median_ns`, `skew_p99_ns`, `skew_max_ns`.
- a group: `key`, the same on all its members, `name`, and in rows `members`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from otel_torchdist.cli.analyze.order import Order, ordered
from otel_torchdist.cli.output.text import iso_time
from otel_torchdist.statistics.correlation import GroupCorrelation
from otel_torchdist.statistics.counts import CountDifference
from otel_torchdist.statistics.model import RankTotals, Row, Statistics

Json = dict[str, Any]


def calls_document(found: Statistics, order: Order) -> Json:
    """Build the document."""
    return {
        "by": [part.value for part in found.parts],
        "differences": [_difference(one) for one in found.differences],
        "rows": [_row(row) for row in ordered(found.rows, order)],
        "ranks": [_rank(one) for one in found.ranks],
        "groups": [_group(one) for one in found.groups],
    }


def _difference(difference: CountDifference) -> Json:
    return {
        "group": {"key": difference.group, "name": difference.group_name},
        "operation": difference.operation,
        "ends": difference.ends,
        "first_sequence": difference.first or None,
        "counts": [dataclasses.asdict(count) for count in difference.counts],
    }


def _row(row: Row) -> Json:
    key, bandwidth = row.key, row.bandwidth
    group = {"key": key.group, "name": row.group_name, "members": row.members}
    return {
        "operation": key.operation,
        "group": group if key.group is not None else None,
        "size_class": key.size_class,
        "call_site": dict(zip(("function", "file", "line"), key.site, strict=True)) if key.site is not None else None,
        "rank": key.rank,
        "phase": key.phase,
        "calls": row.calls,
        "calls_by_rank": {str(rank): calls for rank, calls in row.calls_by_rank.items()},
        "counts_differ": row.counts_differ,
        "open": row.open,
        "failed": row.failed,
        "not_timed": row.not_timed,
        "timed": row.timed,
        "message_bytes": row.message_bytes,
        "time_ns": row.time_ns,
        "median_ns": row.median_ns,
        "p99_ns": row.p99_ns,
        "split": row.split,
        "wait_ns": row.wait_ns,
        "transfer_ns": row.transfer_ns,
        "bandwidth": {
            "algorithm_bytes_per_second": bandwidth.algorithm,
            "bus_bytes_per_second": bandwidth.bus,
            "over": bandwidth.over.value,
        }
        if bandwidth is not None
        else None,
        "compared": row.compared,
        "latecomers": [dataclasses.asdict(one) for one in row.latecomers],
    }


def _rank(totals: RankTotals) -> Json:
    return {
        "rank": totals.rank,
        "host": totals.host or None,
        "calls": totals.calls,
        "open": totals.open,
        "failed": totals.failed,
        "lost": totals.lost,
        "message_bytes": totals.message_bytes,
        "from": iso_time(totals.from_ns) if totals.from_ns is not None else None,
        "until": iso_time(totals.until_ns) if totals.until_ns is not None else None,
        "span_ns": totals.span_ns,
        "communicating_ns": totals.communicating_ns,
        "waiting_ns": totals.waiting_ns,
        "compared": totals.compared,
        "came_last": totals.came_last,
    }


def _group(group: GroupCorrelation) -> Json:
    return {
        "group": {"key": group.group, "name": group.group_name},
        "point_to_point": group.is_point_to_point,
        "members": group.members,
        "known": group.known,
        "first_sequence": group.first,
        "last_sequence": group.last or None,
        "complete": group.complete,
        "open": group.open,
        "incomplete": group.incomplete,
        "mismatched": group.mismatched,
        "unfinished": [dataclasses.asdict(one) for one in group.unfinished],
        "skewed": group.skewed,
        "skew_median_ns": group.skew_median_ns,
        "skew_p99_ns": group.skew_p99_ns,
        "skew_max_ns": group.skew_max_ns,
    }
