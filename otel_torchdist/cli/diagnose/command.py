"""`otel-torchdist diagnose`: its options, its list of runs, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from otel_torchdist.cli.diagnose.leftovers import print_leftovers
from otel_torchdist.cli.diagnose.live import diagnose_live
from otel_torchdist.cli.diagnose.report import print_report
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.options import RunDirectory, Threshold, WorldSize, complete_target
from otel_torchdist.cli.output.terminal import CommandConsole, print_json
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import target_of, warn
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.text import compress_ranks, readable
from otel_torchdist.model.times import day_and_time
from otel_torchdist.node.job.runs.runs import Run, whole_index
from otel_torchdist.runs.diagnosis.chosen import diagnose_chosen
from otel_torchdist.runs.diagnosis.leftovers import Leftovers, diagnose_leftovers
from otel_torchdist.runs.diagnosis.result import SCHEMA, result_of, result_of_leftovers
from otel_torchdist.runs.listing import RunListResult, listed, state_of
from otel_torchdist.runs.targets import chosen_run
from otel_torchdist.sources.archive.reading import is_archive

LIST_WIDTH: Final = 200
"""Width without a terminal."""


def list_runs(config: Config, run_dir: Path | None, as_json: bool) -> None:
    """Print the runs of one job directory, or of all."""
    try:
        index = whole_index(config, run_dir)
    except TapeError as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    warn(index.unreadable)
    if as_json:
        print_json(RunListResult(SCHEMA, listed(index.runs)))
    else:
        print_runs(index.runs, CommandConsole(highlight=False, width=None if sys.stdout.isatty() else LIST_WIDTH))


def print_runs(runs: Iterable[Run], console: Console) -> None:
    """Print a table of runs."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("run", "started", "state", "ranks here", "of", "job directory"):
        table.add_column(name, no_wrap=True, justify="right" if name == "of" else "left")
    for run in runs:
        begun, local_ranks = day_and_time(run.begun_ns), compress_ranks(run.ranks)
        helps = f", helps {run.helps.label or '-'}" if run.helps is not None else ""
        table.add_row(
            run.label or "-", begun, state_of(run) + helps, local_ranks, str(run.world_size), run.directory.name
        )
    console.print(table)


def diagnose(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|PATH…]",
            help="The first digits of a run's id; without it, the run that started last. Or, for a job that was not "
            "recorded, dumps of PyTorch's flight recorder, in folders, archives, or one by one.",
            autocompletion=complete_target,
            show_default=False,
        ),
    ] = None,
    run_dir: RunDirectory = None,
    threshold: Threshold = None,
    world_size: WorldSize = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
    pid: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Inspect a live job that was not recorded, given the pid of a rank or its launcher; may be repeated.",
            show_default=False,
        ),
    ] = None,
    request_dumps: Annotated[
        bool,
        typer.Option(
            "--request-dumps",
            help="With --pid: make ranks write dumps of their flight recorders, if they have a pipe for this request.",
        ),
    ] = False,
    lists: Annotated[bool, typer.Option("--list", help="List the runs that left a tape on this node.")] = False,
) -> None:
    """After a hang or a crash: report what each rank was doing last, and which one held the others up.

    It reads the tapes of a running or ended run. While a rank is running, the verdict is about now; afterwards it is
    about the last moment at which a rank was running. PATH is for jobs that were not recorded.
    """
    config = Config.from_environment()
    rules = StallRules.from_config(config, threshold)
    if pid:
        diagnose_live(pid, rules, as_json, request_dumps)
        return
    if lists:
        list_runs(config, run_dir, as_json)
        return
    wanted = target_of(target or [], run_dir)
    if any(map(is_archive, wanted.paths)):
        fail(
            f"{readable(str(wanted.paths[0]))}: an archive, which lacks the state of processes that a verdict is based "
            "on; `otel-torchdist analyze` reads it",
            ExitCode.NOTHING_FOUND,
        )
    if wanted.paths:
        _diagnose_leftovers(diagnose_leftovers(wanted.paths, rules, world_size), as_json)
        return
    chosen = chosen_run(config, wanted.run, wanted.run_dir)
    diagnosis = diagnose_chosen(chosen, rules)
    warn(diagnosis.warnings)
    if as_json:
        print_json(result_of(diagnosis))
    else:
        print_report(diagnosis)
    if diagnosis.has_problem:
        raise typer.Exit(ExitCode.PROBLEM)


def _diagnose_leftovers(leftovers: Leftovers, as_json: bool) -> None:
    warn(leftovers.notes)
    if leftovers.is_empty:
        fail(f"{', '.join(map(str, leftovers.paths))}: nothing that can be read", ExitCode.NOTHING_FOUND)
    if as_json:
        print_json(result_of_leftovers(leftovers))
    else:
        print_leftovers(leftovers)
    if leftovers.has_problem:
        raise typer.Exit(ExitCode.PROBLEM)
