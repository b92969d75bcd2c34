"""`otel-torchdist stats`: its options, and where it finds what to count."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.histories import Source, source_of_run, timed_source_of
from otel_torchdist.cli.options import RunDirectory, RunDumpsOrTraces
from otel_torchdist.cli.output.terminal import CommandConsole
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.stats.choices import parts_of
from otel_torchdist.cli.stats.document import document_of
from otel_torchdist.cli.stats.order import Order, ordered
from otel_torchdist.cli.stats.report import Report
from otel_torchdist.cli.stats.spreadsheet import csv_of
from otel_torchdist.cli.targets import ranks_of, target_of, warn, without_calls
from otel_torchdist.job.runs.runs import index_of
from otel_torchdist.statistics.compute import statistics_of
from otel_torchdist.statistics.grouping import DEFAULT_PARTS, Part
from otel_torchdist.statistics.model import Statistics
from otel_torchdist.this_process.garbage import without_collecting_garbage

PIPE_WIDTH: Final = 200
"""Width if there is no terminal."""
MOST_ROWS: Final = 40


def stats(
    target: RunDumpsOrTraces = None,
    run_dir: RunDirectory = None,
    by: Annotated[
        str,
        typer.Option(help="What distinguishes rows: a list of `operation`, `group`, `size`, `site`, `rank`, `phase`."),
    ] = ",".join(part.value for part in DEFAULT_PARTS),
    ranks: Annotated[
        str, typer.Option(help="Ranks whose calls count, such as `0-3,8`. Without it: all.", show_default=False)
    ] = "",
    sort: Annotated[Order, typer.Option(help="What comes first: the largest of it, or names in order.")] = Order.TIME,
    rows: Annotated[int, typer.Option(min=0, help="Lines that a table may have; 0 for all.")] = MOST_ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV instead of tables.")] = False,
) -> None:
    """To see where communication time goes: count and time the calls of a run, by operation, group and size.

    It reads the tapes of a run, whether that is running or has ended, in whatever way, dumps of PyTorch's flight
    recorder, or traces of its profiler. Where members of a group have not called an operation equally often, that
    comes first.
    """
    if as_json and as_csv:
        raise typer.BadParameter("either this or --csv", param_hint="--json")
    parts, only = parts_of(by), ranks_of(ranks)
    source = timed_source_of(target_of(target or [], run_dir))
    found = _statistics(source, parts, only)
    warn(without_calls(only, (rank.rank for rank in found.ranks)))
    if not found.ranks:
        what = "no calls of the ranks that were asked for" if only is not None else source.emptiness
        fail(f"{source.place}: {what}", ExitCode.NOTHING_FOUND)
    if as_json:
        typer.echo(json.dumps(document_of(found, source, sort), indent=2))
    elif as_csv:
        typer.echo(csv_of(ordered(found.rows, sort)), nl=False)
    else:
        _report(sort, rows).print(found, source)


def print_stats_of(directory: Path, run_id: int) -> None:
    """Print the tables for a run of which other readers have been reading the tapes.

    Args:
        directory: Its job directory.
        run_id: Its id; 0 for the run that started last there.
    """
    runs = index_of([directory]).runs
    run = next((run for run in runs if run_id in (0, run.run_id)), None)
    if run is None:
        typer.echo(f"no statistics: its tapes in {directory} are gone")
        return
    source = source_of_run(run)
    found = _statistics(source, DEFAULT_PARTS, None)
    _report(Order.TIME, MOST_ROWS).print(found, source)


def _statistics(source: Source, parts: Iterable[Part], only: Collection[int] | None) -> Statistics:
    with without_collecting_garbage():
        found = statistics_of(source.histories, parts, only)
    warn(source.warnings)
    return found


def _report(order: Order, most: int) -> Report:
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Report(CommandConsole(highlight=False, width=width), order, most)
