"""The statistics of a run as a report has them: the rows that matter, and all ranks in columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.report.model.figures import Calls, RankColumns, Skew
from otel_torchdist.report.steps import RankSteps
from otel_torchdist.statistics.calls import RankCalls
from otel_torchdist.statistics.grouping import Grouping, Part
from otel_torchdist.statistics.model import BandwidthOver, CallSite, CallTotals, GroupCorrelation, Row
from otel_torchdist.verdict.wording.frames import describe_frame

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


def calls_in(rows: Iterable[Row]) -> list[Calls]:
    """All rows, most time first."""
    return [_calls(row) for row in sorted(rows, key=lambda row: (-row.time_ns, -row.calls, row.operation or ""))]


def _calls(row: Row) -> Calls:
    last = next(iter(row.latecomers), None)
    counts = row.calls_by_rank.values()
    return Calls(
        operation=row.operation or "",
        group=row.group.name if row.group is not None else None,
        members=row.group.members if row.group is not None else 0,
        size_class=row.size_class or "",
        site=_site(row.call_site),
        calls=row.calls,
        fewest=min(counts, default=0),
        most=max(counts, default=0),
        differ=row.counts_differ,
        open=row.open,
        failed=row.failed,
        bytes=row.message_bytes,
        time_ns=row.time_ns,
        median_ns=row.median_ns,
        p99_ns=row.p99_ns,
        wait_ns=row.wait_ns,
        transfer_ns=row.transfer_ns,
        bus=row.bandwidth.bus_bytes_per_second if row.bandwidth is not None else None,
        is_bound=row.bandwidth is not None and row.bandwidth.over is BandwidthOver.DURATION,
        compared=row.compared,
        last_rank=last.rank if last is not None else None,
        last_times=last.times if last is not None else 0,
        last_ns=last.median_ns if last is not None else None,
    )


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


def skews_in(groups: Iterable[GroupCorrelation]) -> list[Skew]:
    """All groups of several ranks: those in which something is missing, then the largest skew first."""
    found = [_skew(group) for group in groups if group.group.members > 1]
    return sorted(found, key=lambda one: (-one.mismatched, -one.incomplete, -(one.p99_ns or 0), one.group))


def _skew(group: GroupCorrelation) -> Skew:
    return Skew(
        group=group.group.name,
        is_point_to_point=group.point_to_point,
        members=group.group.members,
        complete=group.complete,
        open=group.open,
        incomplete=group.incomplete,
        mismatched=group.mismatched,
        median_ns=group.skew_median_ns,
        p99_ns=group.skew_p99_ns,
        max_ns=group.skew_max_ns,
    )


def _site(site: CallSite | None) -> str | None:
    if site is None:
        return None
    return describe_frame(CallSiteName(site.function, site.file, site.line)) if site.file else ""
