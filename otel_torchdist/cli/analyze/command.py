"""`otel-torchdist analyze`: its options."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from otel_torchdist.analysis.critical_path.analysis import MAX_CALLS
from otel_torchdist.analysis.result import ALL_SECTIONS, Analysis, AnalysisSection, Scope, analysis_of, analysis_result
from otel_torchdist.analysis.statistics.grouping import DEFAULT_KEYS
from otel_torchdist.cli.analyze.calls import CallsReport as Report
from otel_torchdist.cli.analyze.graph import lines_of_graph
from otel_torchdist.cli.analyze.overview import OVERVIEW_KEYS, lines_of_advice, lines_of_overview
from otel_torchdist.cli.analyze.path import lines_of_path
from otel_torchdist.cli.analyze.rows import Order, csv_of, keys_of, ordered
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.options import RunDirectory, RunDumpsOrTraces, Threshold, check_options
from otel_torchdist.cli.output.terminal import CommandConsole, print_json, print_lines
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import ranks_of, steps_of, target_of, warn, without_calls
from otel_torchdist.node.job.runs.runs import index_of
from otel_torchdist.runs.histories import Source, source_of, source_of_run, timed_source_of
from otel_torchdist.system.progress import progress
from otel_torchdist.system.this_process.commands import without_collecting_garbage

PIPE_WIDTH: Final = 200
"""Width without a terminal."""
MAX_ROWS: Final = 40
_HTML: Final = "--html"
_CALLS: Final = "--only calls"
_OUTPUTS_ACCEPTING: Final = {
    "by": (_CALLS,),
    "sort": (_CALLS,),
    "rows": (_CALLS,),
    "as_csv": (_CALLS,),
    "ranks": (_CALLS, _HTML),
    "max_calls": ("--only path",),
    "steps": (_HTML,),
    "threshold": (_HTML,),
    "force": (_HTML,),
}
"""Outputs that accept an option, by parameter, for options that not all outputs accept."""
_ONLY_TEXT_AND_JSON: Final = {"only": ("text and JSON",), "as_json": ("text and JSON",)}


def analyze(
    context: typer.Context,
    target: RunDumpsOrTraces = None,
    only: Annotated[
        AnalysisSection | None, typer.Option(help="Show one section, with its details.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=True,
            help="Write everything, with a timeline and the findings of `diagnose`, into one HTML file. Any browser "
            "opens it without a network.",
            show_default=False,
        ),
    ] = None,
    run_dir: RunDirectory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="With --only calls: print the rows as CSV instead of tables.")
    ] = False,
    by: Annotated[
        str,
        typer.Option(
            help="With --only calls: properties that distinguish rows, a list of `operation`, `group`, `size`, `site`, "
            "`rank`, `phase`."
        ),
    ] = ",".join(key.value for key in DEFAULT_KEYS),
    sort: Annotated[
        Order, typer.Option(help="With --only calls: order of the rows, largest first; names are in ascending order.")
    ] = Order.TIME,
    rows: Annotated[
        int, typer.Option(min=0, help="With --only calls: upper bound on the lines of a table; 0 for all.")
    ] = MAX_ROWS,
    max_calls: Annotated[
        int, typer.Option(min=1_000, help="With --only path: analyze the newest steps, up to this many calls.")
    ] = MAX_CALLS,
    ranks: Annotated[
        str,
        typer.Option(
            help="Ranks, such as `0-7,12`. With --only calls: ranks whose calls are counted. With --html: ranks in the "
            "timeline. Without it: all, or in the timeline of a large job the ranks that matter most.",
            show_default=False,
        ),
    ] = "",
    steps: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="With --html: steps to show in the timeline, such as `100-110`. Without it: the newest steady steps "
            "that fit, and the steps around long waits.",
        ),
    ] = "",
    threshold: Threshold = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE even if it is not a report.")] = False,
) -> None:
    """To see where the time goes: what the job is, where its time goes, who holds it up, and what to do first.

    It reads the tapes of a running or ended run, its archive, dumps of PyTorch's flight recorder, or traces of its
    profiler. It sends no requests to ranks and changes nothing.
    """
    if html is not None:
        # Imported on use: importing the page and the judge takes a fifth of a second.
        from otel_torchdist.cli.analyze.html.writing import PageOptions, write_page

        check_options(context, {**_OUTPUTS_ACCEPTING, **_ONLY_TEXT_AND_JSON}, _HTML)
        options = PageOptions(ranks_of(ranks), steps_of(steps), threshold, force)
        typer.echo(write_page(html, target_of(target or [], run_dir), options))
        return
    check_options(context, _OUTPUTS_ACCEPTING, f"--only {only.value}" if only is not None else "")
    if as_json and as_csv:
        raise typer.BadParameter("cannot be combined with --csv", param_hint="--json")
    sections = ALL_SECTIONS if only is None else frozenset({only})
    keys = keys_of(by) if only is not None or as_json else OVERVIEW_KEYS
    scope = Scope(sections, keys, ranks_of(ranks), max_calls)
    wanted = target_of(target or [], run_dir)
    needs_times = only in (AnalysisSection.CALLS, AnalysisSection.PATH)
    source = timed_source_of(wanted) if needs_times else source_of(wanted)
    analysis = _analysis(source, scope, sort)
    _check_not_empty(analysis, source, scope)
    if as_json:
        print_json(analysis_result(analysis, source.run_id, source.location, tuple(source.warnings)))
    elif as_csv:
        typer.echo(csv_of(analysis.statistics.rows), nl=False)
    else:
        _print(only, analysis, source, _report(rows))


def _analysis(source: Source, scope: Scope, order: Order) -> Analysis:
    if not source.has_times:
        scope = replace(scope, sections=frozenset(scope.sections) - {AnalysisSection.CALLS, AnalysisSection.PATH})
    with without_collecting_garbage(), progress("Analyzing calls"):
        analysis = analysis_of(source.histories, scope)
    warn(source.warnings)
    statistics = msgspec.structs.replace(analysis.statistics, rows=ordered(analysis.statistics.rows, order))
    return replace(analysis, statistics=statistics)


def _check_not_empty(analysis: Analysis, source: Source, scope: Scope) -> None:
    """End the command if there are no calls."""
    ranks = analysis.statistics.ranks
    warn(without_calls(scope.ranks, (rank.rank for rank in ranks)))
    if ranks or analysis.graph is not None or analysis.path is not None:
        return
    reason = "no calls of the requested ranks" if scope.ranks is not None else source.empty_message
    fail(f"{source.location}: {reason}", ExitCode.NOTHING_FOUND)


def _print(only: AnalysisSection | None, analysis: Analysis, source: Source, tables: Report) -> None:
    match only:
        case None:
            print_lines(lines_of_overview(analysis, source))
        case AnalysisSection.CALLS:
            tables.print(analysis, source)
        case AnalysisSection.GRAPH:
            print_lines(lines_of_graph(analysis.graph, source) if analysis.graph is not None else ())
        case AnalysisSection.PATH:
            print_lines(lines_of_path(analysis.path, source) if analysis.path is not None else ())
        case AnalysisSection.ADVICE:
            print_lines(lines_of_advice(analysis, source))


def print_calls_of(directory: Path, run_id: int) -> None:
    """Open the tapes of a run a second time, and print the tables of calls.

    Args:
        directory: The job directory.
        run_id: Id of the run; 0 for the run that started last.
    """
    runs = index_of([directory]).runs
    run = next((run for run in runs if run_id in (0, run.run_id)), None)
    if run is None:
        typer.echo(f"no statistics: its tapes in {directory} are gone")
        return
    source = source_of_run(run)
    analysis = _analysis(source, Scope(frozenset({AnalysisSection.CALLS})), Order.TIME)
    _report(MAX_ROWS).print(analysis, source)


def _report(max_rows: int) -> Report:
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Report(CommandConsole(highlight=False, width=width), max_rows)
