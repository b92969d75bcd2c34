"""The statistics of a run as a report has them: the rows that matter, and all ranks in columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from otel_torchdist.report.model.figures import RankColumns
from otel_torchdist.report.steps import RankSteps
from otel_torchdist.statistics.calls import RankCalls
from otel_torchdist.statistics.grouping import Grouping, Part
from otel_torchdist.statistics.model import CallTotals, GroupCorrelation, Row

MOST_ROWS: Final = 300
_DETAILS: Final = (
    (Part.OPERATION, Part.GROUP, Part.SIZE, Part.SITE),
    (Part.OPERATION, Part.GROUP, Part.SIZE),
    (Part.OPERATION, Part.SIZE, Part.SITE),
    (Part.OPERATION, Part.SIZE),
)


def parts_for(ranks: Iterable[RankCalls]) -> tuple[Part, ...]:
    """What distinguishes rows, as finely as a table of `MOST_ROWS` rows can show: groups of thousands cannot."""
    ranks = list(ranks)
    for parts in _DETAILS[:-1]:
        grouping = Grouping(parts)
        if len({grouping.key_of(kind, rank.rank) for rank in ranks for kind in rank.kinds}) <= MOST_ROWS:
            return parts
    return _DETAILS[-1]


def calls_in(rows: Iterable[Row]) -> list[Row]:
    """All rows, most time first, without the numbers of each rank."""
    ordered = sorted(rows, key=lambda row: (-row.time_ns, -row.calls, row.operation or ""))
    return [msgspec.structs.replace(row, calls_by_rank={}, latecomers=row.latecomers[:1]) for row in ordered]


def ranks_in(totals: Sequence[CallTotals], steps: Mapping[int, RankSteps], hosts: Mapping[str, int]) -> RankColumns:
    """All ranks."""
    figures = [steps[one.rank].figures() for one in totals]
    return RankColumns(
        rank=tuple(one.rank for one in totals),
        host=tuple(hosts.get(one.host or "", -1) for one in totals),
        calls=tuple(one.calls for one in totals),
        open=tuple(one.open for one in totals),
        lost=tuple(one.lost for one in totals),
        bytes=tuple(one.message_bytes for one in totals),
        span_ns=tuple(one.span_ns for one in totals),
        communicating_ns=tuple(one.communicating_ns for one in totals),
        waiting_ns=tuple(one.waiting_ns for one in totals),
        compared=tuple(one.compared for one in totals),
        came_last=tuple(one.came_last for one in totals),
        steps=tuple(count for count, _, _ in figures),
        step_ns=tuple(median for _, median, _ in figures),
        step_p99_ns=tuple(p99 for _, _, p99 in figures),
    )


def skews_in(groups: Iterable[GroupCorrelation]) -> list[GroupCorrelation]:
    """All groups of several ranks: those in which something is missing, then the largest skew first."""
    found = [msgspec.structs.replace(group, unfinished=()) for group in groups if group.group.members > 1]
    return sorted(found, key=lambda one: (-one.mismatched, -one.incomplete, -(one.skew_p99_ns or 0), one.group.name))
