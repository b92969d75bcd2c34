"""An analysis on one screen: what the job is, where its time goes, who holds it up, and what to do first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rich.text import Text

from otel_torchdist.analysis.advice import PAGES, check, finding
from otel_torchdist.analysis.critical_path.critical_path import CauseKind, CriticalPath
from otel_torchdist.analysis.critical_path.result import sentence
from otel_torchdist.analysis.parallelism.graph import Graph
from otel_torchdist.analysis.parallelism.wording import between_hosts, shape_of
from otel_torchdist.analysis.result import Analysis
from otel_torchdist.analysis.statistics.grouping import NO_SIZE, UNKNOWN_SIZE, Part
from otel_torchdist.analysis.statistics.result import CallTotals, Row, Statistics
from otel_torchdist.cli.analyze.calls import describe_difference, describe_unfinished, span_of_calls
from otel_torchdist.cli.analyze.path import headline_of, pieces_of
from otel_torchdist.cli.histories import Source
from otel_torchdist.judge.verdict.wording.calls import describe_frame
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.naming import name_ranks
from otel_torchdist.model.units import amount, duration, per_second, share


def lines_of_advice(analysis: Analysis, source: Source) -> Iterator[Text]:
    """Yield the report on all advice, by decreasing gain."""
    yield Text(source.headline)
    names = group_names(analysis.path)
    if analysis.path is None or not analysis.path.has_steps:
        yield Text("the critical path is unknown: no steady steps are recorded", style="yellow")
    if not analysis.advice:
        yield Text()
        yield Text("nothing stands out")
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
OVERVIEW_PARTS: Final = (Part.OPERATION, Part.SIZE, Part.SITE)
"""Properties that distinguish rows of calls."""
_OFTEN_LAST: Final = 2.0
"""A rank arrives last often if it does so at least this many times as often as on average."""
_NOTABLE: Final = 0.01
"""Rows with a smaller share of the time in calls are left out."""
_DETAILS: Final = (
    "details: --only calls, --only graph, --only path, --only advice; as a page with a timeline: --html FILE"
)


def lines_of_overview(analysis: Analysis, source: Source) -> Iterator[Text]:
    """Yield the overview: the most important lines on each of four questions."""
    yield Text(source.headline)
    yield from _section("what it is", _job(analysis))
    yield from _section("where its time goes", _time(analysis, source))
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
    between = f", {share(across, total)} of that between hosts" if across else ""
    return f"{amount(total)} sent from rank to rank{between}"


def _time(analysis: Analysis, source: Source) -> Iterator[str]:
    if not source.has_times:
        yield "not known: execution traces have no times"
        return
    path = analysis.path
    if path is not None and path.has_steps:
        yield headline_of(path)
        yield from pieces_of(path, MAX_LINES)
    timed = sorted((row for row in analysis.statistics.rows if row.time_ns), key=lambda row: -row.time_ns)
    if not timed:
        yield "not known: no call has an end that is known exactly"
        return
    total = sum(row.time_ns for row in timed)
    yield "in calls, over all ranks:"
    yield from (
        f"  {share(row.time_ns, total):>4}  {_row(row)}" for row in timed[:MAX_LINES] if row.time_ns >= _NOTABLE * total
    )


def _row(row: Row) -> str:
    waiting = share(row.wait_ns, row.wait_ns + row.transfer_ns)
    facts = [
        f"{row.timed:,} calls of {duration(row.median_ns)} at the median",
        *([f"{waiting} of it waiting for others"] if waiting else []),
        *([f"{per_second(row.bandwidth.bus_bytes_per_second)}/s bus bandwidth"] if row.bandwidth is not None else []),
    ]
    line = row.call_site
    size = f" of {row.size_class}" if row.size_class not in (NO_SIZE, UNKNOWN_SIZE) else ""
    is_known = line is not None and line.file
    site = f" in {describe_frame(CallSiteName(line.function, line.file, line.line))}" if line and is_known else ""
    return f"{row.operation}{size}{site}: {', '.join(facts)}"


def _held_up(analysis: Analysis) -> Iterator[str | Text]:
    lines = [*_missing(analysis.statistics), *_causes(analysis.path), *_last(analysis)]
    yield from lines or ["no rank stands out among the arrivals that can be compared"]


def _missing(statistics: Statistics) -> Iterator[Text]:
    """Yield the ranks that have called less than others, or else the newest operations that are not complete."""
    unfinished = [(operation, group.group.name) for group in statistics.groups for operation in group.unfinished]
    unfinished.sort(key=lambda both: (-both[0].sequence, both[1]))
    absent = [describe_unfinished(*both) for both in unfinished if both[0].missing]
    sentences = [describe_difference(difference) for difference in statistics.differences] or absent
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
        yield f"{sentence(cause, path.group_names)}; otherwise a step would be up to {gain} shorter"


def _last(analysis: Analysis) -> Iterator[str]:
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
        is_described = advice.cause is not None  # in the section on what holds the job up
        yield (
            f"{advice.topic.value} ({name_ranks(advice.ranks)})"
            if is_described
            else f"{advice.topic.value}: {finding(advice, names)}"
        )
        yield f"  check: {check(advice)}"
    if len(analysis.advice) > MAX_LINES:
        yield f"… {len(analysis.advice) - MAX_LINES} more; --only advice shows all"
    if not analysis.advice and not is_open:
        is_steady = analysis.path is not None and analysis.path.has_steps
        yield "nothing stands out" if is_steady else "nothing stands out; no steady steps are recorded"
