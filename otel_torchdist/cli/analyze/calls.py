"""The tables on calls that `analyze --only calls` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, TypeVar

from rich.console import Console
from rich.text import Text

from otel_torchdist.analysis.result import Analysis
from otel_torchdist.analysis.statistics.grouping import Part
from otel_torchdist.analysis.statistics.result import (
    BandwidthOver,
    CallCount,
    CallTotals,
    CountDifference,
    GroupCorrelation,
    Row,
    Statistics,
    Unfinished,
)
from otel_torchdist.cli.histories import Source
from otel_torchdist.cli.output.fitting import FittedColumn, fitted
from otel_torchdist.cli.output.text import day_and_time, time_of_day
from otel_torchdist.model.naming import compress_ranks, have, name_ranks
from otel_torchdist.model.units import amount, duration, per_second, share

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


MAX_SENTENCES: Final = 8

_Any = TypeVar("_Any")


@dataclass(frozen=True, slots=True)
class CallsReport:
    """How a report is shown.

    Attributes:
        console: Where to print.
        most: How many lines a table may have; 0 for any number.
    """

    console: Console
    most: int

    def print(self, analysis: Analysis, source: Source) -> None:
        """Print the statistics."""
        found = analysis.statistics
        self._lines(source.headline, source.place, *span_of_calls(found.ranks))
        if found.differences:
            self._lines("", Text("Members of a group have called these a different number of times:", style="bold red"))
            self._sentences([describe_difference(one) for one in found.differences])
        rows = found.rows
        self._table(columns_of_rows(self._first(rows), found.by), len(rows))
        latest = [row for row in rows if row.latecomers]
        if latest:
            self._table(columns_of_last_arrivals(self._first(latest), found.by), len(latest))
        ranks = list(found.ranks)
        if self.most and len(ranks) > self.most:
            ranks.sort(key=lambda one: (-one.came_last, one.rank))
        self._table(columns_of_ranks(self._first(ranks)), len(ranks))
        if found.groups:
            self._table(columns_of_groups(self._first(found.groups)), len(found.groups))
            self._sentences(
                [describe_unfinished(one, group.group.name) for group in found.groups for one in group.unfinished]
            )
        self._lines(*_notes(found, analysis.unknown))

    def _lines(self, *lines: str | Text) -> None:
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _sentences(self, sentences: Sequence[str]) -> None:
        shown = sentences[:MAX_SENTENCES] if self.most else sentences
        self._lines(*(f"  {one}" for one in shown))
        if len(shown) < len(sentences):
            self._lines(f"  … {len(sentences) - len(shown)} more; --rows 0 shows all")

    def _first(self, items: Sequence[_Any]) -> Sequence[_Any]:
        return items[: self.most] if self.most else items

    def _table(self, columns: Sequence[FittedColumn], rows: int) -> None:
        table, left_out = fitted(columns, self.console.width)
        self.console.print(table)
        if left_out:
            self._lines(f"  (no room for {', '.join(left_out)}: a wider terminal, a pipe, --json and --csv have it)")
        if self.most and rows > self.most:
            self._lines(f"  … {rows - self.most} more; --rows 0 shows all")


def span_of_calls(ranks: Sequence[CallTotals]) -> Iterator[str]:
    """What time the calls are from, and from when on those of all ranks are known."""
    spans = [(one.from_ns, one.until_ns) for one in ranks if one.from_ns is not None and one.until_ns is not None]
    if not spans:
        yield "no calls"
        return
    first_ns, last_ns = min(span[0] for span in spans), max(span[1] for span in spans)
    yield f"calls from {day_and_time(first_ns)} to {time_of_day(last_ns)}"
    lossy = [one for one in ranks if one.lost]
    if lossy:
        lost, from_ns = sum(one.lost for one in lossy), max(one.from_ns or 0 for one in lossy)
        who = name_ranks([one.rank for one in lossy])
        yield (
            f"{lost:,} earlier or damaged records of {who} are missing: "
            f"the calls of all ranks are known from {time_of_day(from_ns)} on"
        )


def describe_difference(difference: CountDifference) -> str:
    """Who has called how much, in a clause."""
    group, counts = difference.group.name, difference.counts
    since = f" since sequence {difference.first_sequence}" if difference.first_sequence else ""
    if difference.ends is not None:
        source, destination = difference.ends
        sent, received = (next(one for one in counts if one.operation == name) for name in ("send", "recv"))
        return (
            f"{group}{since}: rank {source} has sent to rank {destination} {_often(sent.calls, sent.open)}, "
            f"which has received {_often(received.calls, received.open)}"
        )
    crowds: dict[tuple[int, int], list[CallCount]] = {}
    for one in counts:
        crowds.setdefault((one.calls, one.open), []).append(one)
    clauses = (
        f"{name_ranks([one.rank for one in crowd])} {_often(*numbers)}" for numbers, crowd in sorted(crowds.items())
    )
    return f"{difference.operation} in {group}{since}: {', '.join(clauses)}"


def _often(calls: int, still_open: int) -> str:
    times = "once" if calls == 1 else "never" if not calls else f"{calls:,} times"
    return f"{times} ({still_open:,} open)" if still_open else times


def describe_unfinished(one: Unfinished, group: str) -> str:
    """Who is missing in an operation, and who is in it, in a clause."""
    between = f" from rank {one.ends[0]} to rank {one.ends[1]}" if one.ends is not None else ""
    text = f"{' / '.join(one.operations)} (sequence {one.sequence}, {group}){between}"
    clauses: list[str] = []
    if one.missing:
        clauses.append(f"{name_ranks(one.missing)} {have(one.missing)} not entered it")
    if one.open:
        clauses.append(f"{name_ranks(one.open)} {have(one.open)} not left it")
    return f"{text}: {', '.join(clauses)}"


def _notes(found: Statistics, unknown: Sequence[int]) -> Iterator[str]:
    """What the tables leave out, and what their signs mean."""
    if unknown:
        yield f"not known: the calls of {name_ranks(unknown)}"
    not_timed = sum(row.not_timed for row in found.rows)
    if not_timed:
        yield (
            f"{not_timed:,} calls are counted, not timed: a poll or PyTorch's watchdog saw them end some time later, "
            "or nothing did"
        )
    bandwidths = [row.bandwidth for row in found.rows if row.bandwidth is not None]
    if any(one.over is BandwidthOver.DURATION for one in bandwidths):
        yield "≥: a lower bound, because the time includes the wait for other ranks"
    if any(row.counts_differ for row in found.rows):
        ranks = sorted({count.rank for one in found.differences for count in one.counts})
        yield f"≠: not all members have called it equally often (ranks {compress_ranks(ranks)})"
