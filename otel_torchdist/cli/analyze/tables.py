"""The columns of the tables of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Final, TypeVar

from rich.text import Text

from otel_torchdist.cli.output.fitting import FittedColumn
from otel_torchdist.statistics.grouping import Part
from otel_torchdist.statistics.model import BandwidthOver, CallTotals, GroupCorrelation, Row
from otel_torchdist.units import amount, duration, per_second, share

UNEQUAL: Final = "≠"
AT_LEAST: Final = "≥"
_WRONG: Final = "bold red"

_Item = TypeVar("_Item", Row, CallTotals, GroupCorrelation)


def columns_of_rows(rows: Sequence[Row], parts: Sequence[Part]) -> list[FittedColumn]:
    """One line for each row, with the counts of calls first."""
    return [
        *_columns_of_parts(rows, parts),
        _column("calls", rows, lambda row: f"{row.calls:,}"),
        _column("per rank", rows, _per_rank),
        _column("bytes", rows, lambda row: amount(row.message_bytes), expendable=1),
        _column("median", rows, lambda row: duration(row.median_ns)),
        _column("p99", rows, lambda row: duration(row.p99_ns), expendable=2),
        _column("wait", rows, lambda row: share(row.wait_ns, row.wait_ns + row.transfer_ns)),
        _column("alg/s", rows, lambda row: _bandwidth(row, is_bus=False), expendable=3),
        _column("bus/s", rows, lambda row: _bandwidth(row, is_bus=True)),
        _column("open", rows, lambda row: _unless_none(row.open)),
        _column("failed", rows, lambda row: _unless_none(row.failed)),
        _column("untimed", rows, lambda row: _unless_none(row.not_timed)),
    ]


def _columns_of_parts(rows: Sequence[Row], parts: Sequence[Part]) -> list[FittedColumn]:
    known: dict[Part, Callable[[Row], str]] = {
        Part.OPERATION: lambda row: row.operation or "",
        Part.GROUP: _group_of,
        Part.SIZE: lambda row: row.size_class or "",
        Part.SITE: _site,
        Part.RANK: lambda row: str(row.rank),
        Part.PHASE: lambda row: (row.phase or "").replace("_", " "),
    }
    numbers = (Part.RANK,)
    return [_column(part.value, rows, known[part], is_text=part not in numbers) for part in parts]


def _group_of(row: Row) -> str:
    return (row.group.name or row.group.key if row.group is not None else "") or "unknown"


def _site(row: Row) -> str:
    site = row.call_site
    known = site is not None and site.file
    return f"{PurePath(site.file).name}:{site.line} {site.function}" if site is not None and known else "unknown"


def _per_rank(row: Row) -> Text:
    least, most = row.calls_of_a_rank_min, row.calls_of_a_rank_max
    text = f"{least:,}" if least == most else f"{least:,}-{most:,}"
    return Text(f"{text} {UNEQUAL}", style=_WRONG) if row.counts_differ else Text(text)


def _bandwidth(row: Row, is_bus: bool) -> str:
    found = row.bandwidth
    if found is None:
        return ""
    bound = AT_LEAST if found.over is BandwidthOver.DURATION else ""
    return f"{bound}{per_second(found.bus_bytes_per_second if is_bus else found.algorithm_bytes_per_second)}"


def columns_of_last_arrivals(rows: Sequence[Row], parts: Sequence[Part]) -> list[FittedColumn]:
    """For each row, the rank that most often arrived last."""
    return [
        *_columns_of_parts(rows, [part for part in parts if part is not Part.RANK]),
        _column("last rank", rows, lambda row: str(row.latecomers[0].rank)),
        _column("times", rows, lambda row: f"{row.latecomers[0].times:,} of {row.compared:,}"),
        _column("share", rows, lambda row: share(row.latecomers[0].times, row.compared)),
        _column("others waited, median", rows, lambda row: duration(row.latecomers[0].median_ns)),
    ]


def columns_of_ranks(ranks: Sequence[CallTotals]) -> list[FittedColumn]:
    """One line for each rank."""
    return [
        _column("rank", ranks, lambda one: str(one.rank)),
        _column("calls", ranks, lambda one: f"{one.calls:,}"),
        _column("open", ranks, lambda one: _unless_none(one.open)),
        _column("failed", ranks, lambda one: _unless_none(one.failed), expendable=1),
        _column("lost", ranks, lambda one: _unless_none(one.lost)),
        _column("bytes", ranks, lambda one: amount(one.message_bytes), expendable=2),
        _column("span", ranks, lambda one: duration(one.span_ns), expendable=3),
        _column("communicating", ranks, lambda one: _part(one.communicating_ns, one.span_ns)),
        _column("waiting", ranks, lambda one: _part(one.waiting_ns, one.span_ns)),
        _column("last to arrive", ranks, lambda one: f"{one.came_last:,} of {one.compared:,}" if one.compared else ""),
    ]


def _part(part_ns: int | None, whole_ns: int) -> str:
    return "" if part_ns is None else f"{duration(part_ns)} {share(part_ns, whole_ns):>4}"


def columns_of_groups(groups: Sequence[GroupCorrelation]) -> list[FittedColumn]:
    """One line for each group, and one for what its ranks send each other."""
    return [
        _column("group", groups, _group, is_text=True),
        _column("ranks", groups, _known),
        _column("sequences", groups, _sequences),
        _column("complete", groups, lambda one: f"{one.complete:,}"),
        _column("open", groups, lambda one: _unless_none(one.open)),
        _column("incomplete", groups, lambda one: _unless_none(one.incomplete)),
        _column("mismatched", groups, lambda one: _unless_none(one.mismatched)),
        _column("skew, median", groups, lambda one: duration(one.skew_median_ns)),
        _column("p99", groups, lambda one: duration(one.skew_p99_ns), expendable=2),
        _column("max", groups, lambda one: duration(one.skew_max_ns), expendable=1),
    ]


def _group(group: GroupCorrelation) -> str:
    return f"{group.group.name}, send/recv" if group.point_to_point else group.group.name


def _known(group: GroupCorrelation) -> str:
    return str(group.group.members) if group.known == group.group.members else f"{group.known} of {group.group.members}"


def _sequences(group: GroupCorrelation) -> str:
    return "" if group.last_sequence is None else f"{max(group.first_sequence, 1):,}-{group.last_sequence:,}"


def _column(
    name: str,
    items: Sequence[_Item],
    cell: Callable[[_Item], str | Text],
    *,
    is_text: bool = False,
    expendable: int = 0,
) -> FittedColumn:
    cells = [found if isinstance(found, Text) else Text(found) for found in map(cell, items)]
    return FittedColumn(name, is_text, expendable, cells)


def _unless_none(number: int) -> str:
    return f"{number:,}" if number else ""
