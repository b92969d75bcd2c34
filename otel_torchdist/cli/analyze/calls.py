"""The tables of `analyze --only calls`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, TypeVar

from rich.console import Console
from rich.text import Text

from otel_torchdist.analysis.result import Analysis
from otel_torchdist.analysis.statistics.grouping import GroupingKey
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
from otel_torchdist.cli.output.fitting import FittedColumn, fitted
from otel_torchdist.model.text import amount, compress_ranks, duration, have, name_ranks, per_second, share
from otel_torchdist.model.times import day_and_time, time_of_day
from otel_torchdist.runs.histories import Source

UNEQUAL: Final = "≠"
AT_LEAST: Final = "≥"
_ALARM_STYLE: Final = "bold red"

_Item = TypeVar("_Item", Row, CallTotals, GroupCorrelation)


def columns_of_rows(rows: Sequence[Row], keys: Sequence[GroupingKey]) -> list[FittedColumn]:
    """Return the columns of the main table: one line for each row."""
    return [
        *_columns_of_keys(rows, keys),
        _column("calls", rows, lambda row: f"{row.calls:,}"),
        _column("per rank", rows, _per_rank),
        _column("bytes", rows, lambda row: amount(row.message_bytes), expendable=1),
        _column("median", rows, lambda row: duration(row.median_ns)),
        _column("p99", rows, lambda row: duration(row.p99_ns), expendable=2),
        _column("wait", rows, lambda row: share(row.wait_ns, row.wait_ns + row.transfer_ns)),
        _column("alg/s", rows, lambda row: _bandwidth(row, is_bus=False), expendable=3),
        _column("bus/s", rows, lambda row: _bandwidth(row, is_bus=True)),
        _column("open", rows, lambda row: _unless_zero(row.open)),
        _column("failed", rows, lambda row: _unless_zero(row.failed)),
        _column("untimed", rows, lambda row: _unless_zero(row.not_timed)),
    ]


def _columns_of_keys(rows: Sequence[Row], keys: Sequence[GroupingKey]) -> list[FittedColumn]:
    text_by_key: dict[GroupingKey, Callable[[Row], str]] = {
        GroupingKey.OPERATION: lambda row: row.operation or "",
        GroupingKey.GROUP: _group_of_row,
        GroupingKey.SIZE: lambda row: row.size_class or "",
        GroupingKey.SITE: _site,
        GroupingKey.RANK: lambda row: str(row.rank),
        GroupingKey.PHASE: lambda row: (row.phase or "").replace("_", " "),
    }
    numbers = (GroupingKey.RANK,)
    return [_column(key.value, rows, text_by_key[key], is_text=key not in numbers) for key in keys]


def _group_of_row(row: Row) -> str:
    return (row.group.name or row.group.key if row.group is not None else "") or "unknown"


def _site(row: Row) -> str:
    site = row.call_site
    is_known = site is not None and site.file
    return f"{PurePath(site.file).name}:{site.line} {site.function}" if site is not None and is_known else "unknown"


def _per_rank(row: Row) -> Text:
    least, most = row.calls_of_a_rank_min, row.calls_of_a_rank_max
    text = f"{least:,}" if least == most else f"{least:,}-{most:,}"
    return Text(f"{text} {UNEQUAL}", style=_ALARM_STYLE) if row.counts_differ else Text(text)


def _bandwidth(row: Row, is_bus: bool) -> str:
    bandwidth = row.bandwidth
    if bandwidth is None:
        return ""
    bound = AT_LEAST if bandwidth.over is BandwidthOver.DURATION else ""
    return f"{bound}{per_second(bandwidth.bus_bytes_per_second if is_bus else bandwidth.algorithm_bytes_per_second)}"


def columns_of_last_arrivals(rows: Sequence[Row], keys: Sequence[GroupingKey]) -> list[FittedColumn]:
    """Return the columns of the table of latecomers: for each row, the rank that most often arrived last."""
    return [
        *_columns_of_keys(rows, [key for key in keys if key is not GroupingKey.RANK]),
        _column("last rank", rows, lambda row: str(row.latecomers[0].rank)),
        _column("times", rows, lambda row: f"{row.latecomers[0].times:,} of {row.compared:,}"),
        _column("share", rows, lambda row: share(row.latecomers[0].times, row.compared)),
        _column("others waited, median", rows, lambda row: duration(row.latecomers[0].median_ns)),
    ]


def columns_of_ranks(ranks: Sequence[CallTotals]) -> list[FittedColumn]:
    """Return the columns of the table of ranks: one line for each rank."""
    return [
        _column("rank", ranks, lambda rank: str(rank.rank)),
        _column("calls", ranks, lambda rank: f"{rank.calls:,}"),
        _column("open", ranks, lambda rank: _unless_zero(rank.open)),
        _column("failed", ranks, lambda rank: _unless_zero(rank.failed), expendable=1),
        _column("lost", ranks, lambda rank: _unless_zero(rank.lost)),
        _column("bytes", ranks, lambda rank: amount(rank.message_bytes), expendable=2),
        _column("span", ranks, lambda rank: duration(rank.span_ns), expendable=3),
        _column("communicating", ranks, lambda rank: _duration_and_share(rank.communicating_ns, rank.span_ns)),
        _column("waiting", ranks, lambda rank: _duration_and_share(rank.waiting_ns, rank.span_ns)),
        _column("last to arrive", ranks, _last_arrivals),
    ]


def _last_arrivals(rank: CallTotals) -> str:
    return f"{rank.came_last:,} of {rank.compared:,}" if rank.compared else ""


def _duration_and_share(part_ns: int | None, whole_ns: int) -> str:
    return "" if part_ns is None else f"{duration(part_ns)} {share(part_ns, whole_ns):>4}"


def columns_of_groups(groups: Sequence[GroupCorrelation]) -> list[FittedColumn]:
    """Return the columns of the table of groups: one line for each group, and one for its point-to-point traffic."""
    return [
        _column("group", groups, _group_name, is_text=True),
        _column("ranks", groups, _members),
        _column("sequences", groups, _sequences),
        _column("complete", groups, lambda group: f"{group.complete:,}"),
        _column("open", groups, lambda group: _unless_zero(group.open)),
        _column("incomplete", groups, lambda group: _unless_zero(group.incomplete)),
        _column("mismatched", groups, lambda group: _unless_zero(group.mismatched)),
        _column("skew, median", groups, lambda group: duration(group.skew_median_ns)),
        _column("p99", groups, lambda group: duration(group.skew_p99_ns), expendable=2),
        _column("max", groups, lambda group: duration(group.skew_max_ns), expendable=1),
    ]


def _group_name(group: GroupCorrelation) -> str:
    return f"{group.group.name}, send/recv" if group.point_to_point else group.group.name


def _members(group: GroupCorrelation) -> str:
    return str(group.group.members) if group.known == group.group.members else f"{group.known} of {group.group.members}"


def _sequences(group: GroupCorrelation) -> str:
    return "" if group.last_sequence is None else f"{max(group.first_sequence, 1):,}-{group.last_sequence:,}"


def _column(
    name: str,
    items: Sequence[_Item],
    text_of: Callable[[_Item], str | Text],
    *,
    is_text: bool = False,
    expendable: int = 0,
) -> FittedColumn:
    cells = [cell if isinstance(cell, Text) else Text(cell) for cell in map(text_of, items)]
    return FittedColumn(name, is_text, expendable, cells)


def _unless_zero(number: int) -> str:
    return f"{number:,}" if number else ""


MAX_SENTENCES: Final = 8

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CallsReport:
    """Prints the tables.

    Attributes:
        console: The console to print to.
        max_rows: Upper bound on the lines of a table; 0 for any number.
    """

    console: Console
    max_rows: int

    def print(self, analysis: Analysis, source: Source) -> None:
        """Print the statistics."""
        statistics = analysis.statistics
        self._lines(source.headline, source.location, *span_of_calls(statistics.ranks))
        if statistics.differences:
            self._lines(
                "",
                Text("Members of a group have called these operations a different number of times:", style="bold red"),
            )
            self._sentences([describe_difference(difference) for difference in statistics.differences])
        rows = statistics.rows
        self._table(columns_of_rows(self._first(rows), statistics.by), len(rows))
        latest = [row for row in rows if row.latecomers]
        if latest:
            self._table(columns_of_last_arrivals(self._first(latest), statistics.by), len(latest))
        ranks = list(statistics.ranks)
        if self.max_rows and len(ranks) > self.max_rows:
            ranks.sort(key=lambda rank: (-rank.came_last, rank.rank))
        self._table(columns_of_ranks(self._first(ranks)), len(ranks))
        if statistics.groups:
            self._table(columns_of_groups(self._first(statistics.groups)), len(statistics.groups))
            self._sentences(
                [
                    describe_unfinished(operation, group.group.name)
                    for group in statistics.groups
                    for operation in group.unfinished
                ]
            )
        self._lines(*_notes(statistics, analysis.unknown))

    def _lines(self, *lines: str | Text) -> None:
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _sentences(self, sentences: Sequence[str]) -> None:
        shown = sentences[:MAX_SENTENCES] if self.max_rows else sentences
        self._lines(*(f"  {sentence}" for sentence in shown))
        if len(shown) < len(sentences):
            self._lines(f"  … {len(sentences) - len(shown)} more; --rows 0 shows all")

    def _first(self, items: Sequence[_T]) -> Sequence[_T]:
        return items[: self.max_rows] if self.max_rows else items

    def _table(self, columns: Sequence[FittedColumn], rows: int) -> None:
        table, left_out = fitted(columns, self.console.width)
        self.console.print(table)
        if left_out:
            self._lines(f"  (no room for {', '.join(left_out)}: use a wider terminal, a pipe, --json or --csv)")
        if self.max_rows and rows > self.max_rows:
            self._lines(f"  … {rows - self.max_rows} more; --rows 0 shows all")


def span_of_calls(ranks: Sequence[CallTotals]) -> Iterator[str]:
    """Yield the time span of the calls, and the time from which the calls of all ranks are known."""
    spans = [(rank.from_ns, rank.until_ns) for rank in ranks if rank.from_ns is not None and rank.until_ns is not None]
    if not spans:
        yield "no calls"
        return
    first_ns, last_ns = min(span[0] for span in spans), max(span[1] for span in spans)
    yield f"calls from {day_and_time(first_ns)} to {time_of_day(last_ns)}"
    lossy = [rank for rank in ranks if rank.lost]
    if lossy:
        lost, from_ns = sum(rank.lost for rank in lossy), max(rank.from_ns or 0 for rank in lossy)
        ranks_text = name_ranks([rank.rank for rank in lossy])
        yield (
            f"{lost:,} earlier or damaged records of {ranks_text} are missing: "
            f"the calls of all ranks are known from {time_of_day(from_ns)} on"
        )


def describe_difference(difference: CountDifference) -> str:
    """Describe the number of calls of each rank in a clause."""
    group, counts = difference.group.name, difference.counts
    since = f" since sequence {difference.first_sequence}" if difference.first_sequence else ""
    if difference.ends is not None:
        source, destination = difference.ends
        sent, received = (next(count for count in counts if count.operation == name) for name in ("send", "recv"))
        return (
            f"{group}{since}: rank {source} has sent to rank {destination} {_times(sent.calls, sent.open)}, "
            f"which has received {_times(received.calls, received.open)}"
        )
    ranks_by_count: dict[tuple[int, int], list[CallCount]] = {}
    for count in counts:
        ranks_by_count.setdefault((count.calls, count.open), []).append(count)
    (first, fewest), *others = [
        (name_ranks([count.rank for count in counts_alike]), _times(*numbers))
        for numbers, counts_alike in sorted(ranks_by_count.items())
    ]
    clauses = [f"{first} called it {fewest}", *(f"{ranks} {times}" for ranks, times in others)]
    return f"{difference.operation} in {group}{since}: {', '.join(clauses)}"


def _times(calls: int, still_open: int) -> str:
    times = "once" if calls == 1 else "never" if not calls else f"{calls:,} times"
    return f"{times} ({still_open:,} open)" if still_open else times


def describe_unfinished(operation: Unfinished, group: str) -> str:
    """Describe the ranks missing in an operation, and the ranks inside, in a clause."""
    between = f" from rank {operation.ends[0]} to rank {operation.ends[1]}" if operation.ends is not None else ""
    text = f"{' / '.join(operation.operations)} (sequence {operation.sequence}, {group}){between}"
    clauses: list[str] = []
    if operation.missing:
        clauses.append(f"{name_ranks(operation.missing)} {have(operation.missing)} not entered it")
    if operation.open:
        clauses.append(f"{name_ranks(operation.open)} {have(operation.open)} not left it")
    return f"{text}: {', '.join(clauses)}"


def _notes(statistics: Statistics, unknown: Sequence[int]) -> Iterator[str]:
    """Yield explanations of the tables: missing ranks, untimed calls, and the meaning of signs."""
    if unknown:
        yield f"not known: the calls of {name_ranks(unknown)}"
    not_timed = sum(row.not_timed for row in statistics.rows)
    if not_timed:
        yield (
            f"{not_timed:,} calls are counted, not timed: their exact end is unknown, because it was polled, "
            "reported by PyTorch's watchdog, or not observed"
        )
    bandwidths = [row.bandwidth for row in statistics.rows if row.bandwidth is not None]
    if any(bandwidth.over is BandwidthOver.DURATION for bandwidth in bandwidths):
        yield "≥: a lower bound, because the time includes the wait for other ranks"
    if any(row.counts_differ for row in statistics.rows):
        ranks = sorted({count.rank for difference in statistics.differences for count in difference.counts})
        yield f"≠: not all members have called it equally often (ranks {compress_ranks(ranks)})"
