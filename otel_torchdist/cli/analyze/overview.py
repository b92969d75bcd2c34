"""An analysis on one screen: what the job is, where its time goes, who holds it up, and what to do first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rich.text import Text

from otel_torchdist.analysis.advice import PAGES, check, finding
from otel_torchdist.analysis.critical_path.critical_path import CauseKind, CriticalPath
from otel_torchdist.analysis.critical_path.wording import describe_cause, describe_outlier
from otel_torchdist.analysis.parallelism.graph import Graph
from otel_torchdist.analysis.parallelism.wording import between_hosts, shape_of
from otel_torchdist.analysis.result import Analysis
from otel_torchdist.analysis.statistics.grouping import NO_SIZE, UNKNOWN_SIZE, GroupingKey
from otel_torchdist.analysis.statistics.result import CallTotals, Row, Statistics
from otel_torchdist.cli.analyze.calls import describe_difference, describe_unfinished, span_of_calls
from otel_torchdist.cli.analyze.path import headline_of, pieces_of
from otel_torchdist.judge.verdict.wording.calls import describe_frame
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.text import amount, duration, name_ranks, per_second, share
from otel_torchdist.runs.histories import Source


def lines_of_advice(analysis: Analysis, source: Source) -> Iterator[Text]:
    """Yield the report on all advice, by decreasing gain."""
    yield Text(source.headline)
    names = group_names(analysis.path)
    if analysis.path is None or not analysis.path.has_steps:
        yield Text("the critical path is unknown: no steady steps are recorded", style="yellow")
    if not analysis.advice:
        yield Text()
        yield Text(_nothing_stands_out(analysis.path))
    for advice in analysis.advice:
        yield Text()
        yield Text.assemble((advice.topic.value, "bold"), f": {finding(advice, names)}")
        yield Text(f"    check: {check(advice)}")
        yield Text(f"    more: {PAGES[advice.topic]}")


def group_names(path: CriticalPath | None) -> Mapping[str, str]:
    """Return the names of groups by key; empty without a path."""
    return path.group_names if path is not None else dict[str, str]()


MAX_LINES: Final = 3
"""Upper bound on the lines of each topic."""
OVERVIEW_KEYS: Final = (GroupingKey.OPERATION, GroupingKey.SIZE, GroupingKey.SITE)
"""Properties that distinguish the rows of calls in the overview."""
_OFTEN_LAST: Final = 2.0
"""A rank that arrives last at least this many times as often as the average rank is named."""
_MIN_SHARE: Final = 0.01
"""Rows with a smaller share of the time in calls are left out."""
_DETAILS: Final = (
    "details: --only calls, --only graph, --only path, --only advice; as a page with a timeline: --html FILE"
)


def lines_of_overview(analysis: Analysis, source: Source) -> Iterator[Text]:
    """Yield the overview: the most important lines on each of four questions."""
    yield Text(source.headline)
    yield from _section("what it is", _job(analysis))
    yield from _section("where its time goes", _time_spent(analysis, source))
    yield from _section("who holds it up", _held_up(analysis))
    yield from _section("what to do first", _advice(analysis))
    yield Text()
    yield Text(_DETAILS, style="dim")


def _section(title: str, lines: Iterable[str | Text]) -> Iterator[Text]:
    yield Text()
    yield Text(title, style="bold")
    for line in lines:
        yield Text.assemble("  ", line)


def _job(analysis: Analysis) -> Iterator[str | Text]:
    graph, statistics = analysis.graph, analysis.statistics
    if graph is not None:
        yield Text(shape_of(graph), style="bold")
    facts = [*_calls(statistics.ranks), *([_sent(graph)] if graph is not None and graph.sent else [])]
    if facts:
        yield "; ".join(facts)
    yield from list(span_of_calls(statistics.ranks))[1:]
    if analysis.unknown:
        yield Text(f"not known: the calls of {name_ranks(analysis.unknown)}", style="yellow")


def _calls(ranks: Sequence[CallTotals]) -> Iterator[str]:
    if ranks:
        yield f"{sum(rank.calls for rank in ranks):,} {next(span_of_calls(ranks))}"


def _sent(graph: Graph) -> str:
    total = sum(graph.sent.values())
    across = between_hosts(graph).total()
    between = f", {share(across, total)} of that between nodes" if across else ""
    return f"{amount(total)} sent from rank to rank{between}"


def _time_spent(analysis: Analysis, source: Source) -> Iterator[str]:
    if not source.has_times:
        yield "not known: execution traces have no times"
        return
    path = analysis.path
    if path is not None and path.has_steps:
        yield headline_of(path)
        yield from pieces_of(path, MAX_LINES)
    timed = sorted((row for row in analysis.statistics.rows if row.time_ns), key=lambda row: -row.estimated_ns)
    if not timed:
        yield "not known: no call has an end that is known exactly"
        return
    total = sum(row.estimated_ns for row in timed)
    is_sample = any(row.not_timed for row in timed)
    yield f"in calls, over all ranks{', with untimed calls as long as timed ones' if is_sample else ''}:"
    yield from (
        f"  {share(row.estimated_ns, total):>4}  {_row(row)}"
        for row in timed[:MAX_LINES]
        if row.estimated_ns >= _MIN_SHARE * total
    )


def _row(row: Row) -> str:
    waiting = share(row.wait_ns, row.wait_ns + row.transfer_ns)
    facts = [
        f"{_calls_in(row)} of {duration(row.median_ns)} at the median",
        *([f"{waiting} of it waiting for others"] if waiting else []),
        *([f"{per_second(row.bandwidth.bus_bytes_per_second)}/s bus bandwidth"] if row.bandwidth is not None else []),
    ]
    line = row.call_site
    size = f" of {row.size_class}" if row.size_class not in (NO_SIZE, UNKNOWN_SIZE) else ""
    is_known = line is not None and line.file
    site = f" in {describe_frame(CallSiteName(line.function, line.file, line.line))}" if line and is_known else ""
    return f"{row.operation}{size}{site}: {', '.join(facts)}"


def _calls_in(row: Row) -> str:
    if not row.not_timed:
        return f"{row.timed:,} calls"
    return f"{row.timed + row.not_timed:,} calls ({row.timed:,} timed)"


def _held_up(analysis: Analysis) -> Iterator[str | Text]:
    lines = [*_missing(analysis.statistics), *_causes(analysis.path), *_often_last(analysis)]
    outliers = [*_outliers(analysis.path)]
    compared = "in the steady steps" if outliers else "among the arrivals that can be compared"
    yield from lines or [f"no rank stands out {compared}"]
    yield from outliers


def _missing(statistics: Statistics) -> Iterator[Text]:
    """Yield the ranks that have called less than others, or else the newest operations that are not complete."""
    unfinished = [(operation, group.group.name) for group in statistics.groups for operation in group.unfinished]
    unfinished.sort(key=lambda entry: (-entry[0].sequence, entry[1]))
    incomplete = [describe_unfinished(*entry) for entry in unfinished if entry[0].missing]
    sentences = [describe_difference(difference) for difference in statistics.differences] or incomplete
    yield from (Text(text, style="bold red") for text in sentences[:MAX_LINES])
    if len(sentences) > MAX_LINES:
        yield Text(f"… {len(sentences) - MAX_LINES} more; --only calls shows all")
    if unfinished and not sentences:
        more = f", and {len(unfinished) - 1} more operations are open" if len(unfinished) > 1 else ""
        yield Text(f"{describe_unfinished(*unfinished[0])}{more}", style="red")


def _causes(path: CriticalPath | None) -> Iterator[str]:
    """Yield the ranks that lengthen steps. Ranks that only wait and transfers are left out."""
    causes = [cause for cause in path.causes if cause.kind is not CauseKind.TRANSFER] if path is not None else []
    for cause in causes[:MAX_LINES]:
        assert path is not None
        gain = f"{duration(cause.gain_ns)} ({share(cause.gain_ns, path.path_ns)})"
        yield f"{describe_cause(cause, path.group_names)}; otherwise a step would be up to {gain} shorter"


def _outliers(path: CriticalPath | None) -> Iterator[str]:
    """Yield the longest outlier step with the rank that held it up: causes are derived from steady steps only."""
    if path is None or not path.longest:
        return
    longest = max(path.longest, key=lambda step: step.duration_ns)
    count = f" (the longest of {path.unsteady} outliers)" if path.unsteady > 1 else ""
    yield f"{describe_outlier(longest, path.group_names)}{count}"


def _often_last(analysis: Analysis) -> Iterator[str]:
    """Yield the ranks that arrive last far more often than others, if no critical path is known."""
    if analysis.path is not None and analysis.path.has_steps:
        return
    compared = [rank for rank in analysis.statistics.ranks if rank.compared]
    often = [rank for rank in compared if rank.came_last * len(compared) >= _OFTEN_LAST * rank.compared]
    for rank in sorted(often, key=lambda rank: -rank.came_last)[:MAX_LINES]:
        yield f"rank {rank.rank} arrives last at {rank.came_last:,} of {rank.compared:,} operations"


def _advice(analysis: Analysis) -> Iterator[str]:
    is_open = bool(analysis.statistics.differences) or any(group.unfinished for group in analysis.statistics.groups)
    if is_open:
        yield "otel-torchdist diagnose judges open operations, and shows what each rank was doing last"
    names = group_names(analysis.path)
    for advice in analysis.advice[:MAX_LINES]:
        is_in_held_up = advice.cause is not None  # the section `who holds it up` has the cause
        yield (
            f"{advice.topic.value} ({name_ranks(advice.ranks)})"
            if is_in_held_up
            else f"{advice.topic.value}: {finding(advice, names)}"
        )
        yield f"  check: {check(advice)}"
    if len(analysis.advice) > MAX_LINES:
        yield f"… {len(analysis.advice) - MAX_LINES} more; --only advice shows all"
    if not analysis.advice and not is_open:
        is_steady = analysis.path is not None and analysis.path.has_steps
        yield f"{_nothing_stands_out(analysis.path)}{'' if is_steady else '; no steady steps are recorded'}"


def _nothing_stands_out(path: CriticalPath | None) -> str:
    return "nothing stands out in the steady steps" if path is not None and path.unsteady else "nothing stands out"
