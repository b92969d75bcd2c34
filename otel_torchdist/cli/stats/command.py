"""`otel-torchdist stats`: its options, and where it finds what to count."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from otel_torchdist.cli.completion import complete_run
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.stats.choices import parts_of, ranks_of
from otel_torchdist.cli.stats.document import document_of
from otel_torchdist.cli.stats.dumps import source_of_dumps
from otel_torchdist.cli.stats.order import Order, ordered
from otel_torchdist.cli.stats.report import Report
from otel_torchdist.cli.stats.source import Source, source_of_run
from otel_torchdist.cli.stats.spreadsheet import csv_of
from otel_torchdist.cli.switched_off import with_reasons
from otel_torchdist.cli.terminal import CommandConsole
from otel_torchdist.cli.text import fail
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.job.directory import tapes_in
from otel_torchdist.job.runs import SeveralRunsError, index_of, select, tape_directory, whole_index
from otel_torchdist.statistics.compute import statistics_of
from otel_torchdist.statistics.grouping import DEFAULT_PARTS, Part
from otel_torchdist.statistics.model import Statistics

PIPE_WIDTH: Final = 200
"""Width if there is no terminal."""
MOST_ROWS: Final = 40


def stats(
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN|PATH]",
            help="The first digits of the run's id, or a folder, file or archive of dumps of PyTorch's flight "
            "recorder. Without it: the run that started last.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = "",
    run_dir: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, resolve_path=True, help="The job directory, or a copy of one."),
    ] = None,
    by: Annotated[
        str, typer.Option(help="What distinguishes rows: a list of `operation`, `group`, `size`, `site`, `rank`.")
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

    It reads the tapes of a run, whether that is running or has ended, in whatever way, or dumps of PyTorch's flight
    recorder. Where members of a group have not called an operation equally often, that comes first.
    """
    if as_json and as_csv:
        raise typer.BadParameter("either this or --csv", param_hint="--json")
    parts, only = parts_of(by), ranks_of(ranks)
    source = _source(run, run_dir)
    found = _statistics(source, parts, only)
    if not found.ranks:
        fail(f"{source.place}: no calls of {f'ranks {ranks}' if ranks else 'any rank'}", ExitCode.NOTHING_FOUND)
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
    # The calls are many small objects without cycles: looking for cycles among them would take a quarter of the time.
    gc.disable()
    try:
        found = statistics_of(source.histories, parts, only)
    finally:
        gc.enable()
    for warning in source.warnings:
        typer.echo(f"otel-torchdist: warning: {warning}", err=True)
    return found


def _report(order: Order, most: int) -> Report:
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Report(CommandConsole(highlight=False, width=width), order, most)


def _source(run: str, run_dir: Path | None) -> Source:
    """What the arguments ask for: a path is one that exists, or that no run's id can be."""
    path = Path(run).expanduser()
    if run and (path.exists() or os.sep in run):
        if run_dir is not None:
            raise typer.BadParameter("a path and --run-dir exclude each other", param_hint="--run-dir")
        if not path.exists():
            fail(f"{run}: there is no such file or folder", ExitCode.NOTHING_FOUND)
        if not path.is_dir() or not tapes_in(path):
            return source_of_dumps(path)
        run, run_dir = "", path.resolve()
    config = Config.from_environment()
    try:
        index = whole_index(config, run_dir)
        chosen = select(index.runs, run) if run else next(iter(index.runs), None)
        where = run_dir or tape_directory(config)
    except (TapeError, SeveralRunsError) as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    if chosen is None and index.runs:
        fail(f"no run begins with {run}; `otel-torchdist diagnose --list` lists all runs", ExitCode.NOTHING_FOUND)
    if chosen is None:
        reason = "; ".join([f"{where}: no tape that can be read", *index.unreadable])
        fail(with_reasons(reason, os.environ, config), ExitCode.NOTHING_FOUND)
    source = source_of_run(chosen)
    source.warnings.extend(text for text in index.unreadable if text.startswith(str(chosen.directory)))
    return source
