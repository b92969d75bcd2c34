"""Statistics for people: what differs first, then the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from rich.console import Console
from rich.text import Text

from otel_torchdist.analysis.analyzer import Analysis
from otel_torchdist.cli.analyze.tables import (
    columns_of_groups,
    columns_of_last_arrivals,
    columns_of_ranks,
    columns_of_rows,
)
from otel_torchdist.cli.histories import Source
from otel_torchdist.cli.output.fitting import FittedColumn, fitted
from otel_torchdist.cli.output.text import day_and_time, time_of_day
from otel_torchdist.naming import compress_ranks, have, name_ranks
from otel_torchdist.statistics.model import (
    BandwidthOver,
    CallCount,
    CallTotals,
    CountDifference,
    Statistics,
    Unfinished,
)

MAX_SENTENCES: Final = 8

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Report:
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

    def _first(self, items: Sequence[_Item]) -> Sequence[_Item]:
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
