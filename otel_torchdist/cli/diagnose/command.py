"""`otel-torchdist diagnose`: its options, its list of runs, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import typer

from otel_torchdist.archive.reading import is_archive
from otel_torchdist.cli.diagnose.diagnosis import Diagnosis, diagnose_run
from otel_torchdist.cli.diagnose.leftovers import Leftovers, diagnose_leftovers, print_leftovers
from otel_torchdist.cli.diagnose.live import diagnose_live
from otel_torchdist.cli.diagnose.report import print_report
from otel_torchdist.cli.diagnose.result import result_of, result_of_leftovers
from otel_torchdist.cli.diagnose.run_list import list_runs
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.options import RunDirectory, Threshold, WorldSize, complete_target
from otel_torchdist.cli.output.terminal import CommandConsole, print_json
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import chosen_run, target_of, warn
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.job.runs.runs import Run, other_parts
from otel_torchdist.naming import readable
from otel_torchdist.verdict.rules import StallRules

LIST_WIDTH: Final = 200
"""Width if there is no terminal."""


def diagnose(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|PATH…]",
            help="The first digits of a run's id; without it, the run that started last. Or what a job has left that "
            "was not recorded: dumps of PyTorch's flight recorder, in folders, archives, or one by one.",
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
            help="Look at a live job that was not recorded, given a rank or its launcher; may be repeated.",
            show_default=False,
        ),
    ] = None,
    request_dumps: Annotated[
        bool,
        typer.Option(
            "--request-dumps",
            help="With --pid: have ranks write dumps of their flight recorders, where they have a pipe for that.",
        ),
    ] = False,
    lists: Annotated[bool, typer.Option("--list", help="List the runs that left a tape on this node.")] = False,
) -> None:
    """After a hang or a crash: report what each rank was doing last, and which one held the others up.

    It reads the tapes of a run, whether that is running or has ended, in whatever way. While a rank is running, the
    verdict is about now; afterwards it is about the last moment at which one was. Of a job that was not recorded it
    reads what lies at PATH.
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
            f"{readable(str(wanted.paths[0]))}: an archive, which does not have the state of processes that a verdict "
            "is based on; `otel-torchdist analyze` reads it",
            ExitCode.NOTHING_FOUND,
        )
    if wanted.paths:
        _diagnose_leftovers(diagnose_leftovers(wanted.paths, rules, world_size), as_json)
        return
    chosen = chosen_run(config, wanted.run, wanted.run_dir)
    try:
        diagnosis = diagnose_run(
            chosen.run,
            rules,
            meets=[
                *chosen.index.meeting(chosen.run),
                *chosen.index.of_other_sizes(chosen.run),
                *other_parts(chosen.run),
            ],
        )
    except TapeError as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    helpers = tuple(_diagnosed(chosen.index.helpers_of(diagnosis.run), rules))
    diagnosis = dataclasses.replace(diagnosis, warnings=(*chosen.unreadable, *diagnosis.warnings), helpers=helpers)
    warn(diagnosis.warnings)
    if as_json:
        print_json(result_of(diagnosis))
    else:
        print_report(diagnosis, CommandConsole())
    if diagnosis.has_problem:
        raise typer.Exit(ExitCode.PROBLEM)


def _diagnose_leftovers(found: Leftovers, as_json: bool) -> None:
    warn(found.notes)
    if found.is_empty:
        fail(f"{', '.join(map(str, found.paths))}: nothing that can be read", ExitCode.NOTHING_FOUND)
    if as_json:
        print_json(result_of_leftovers(found))
    else:
        print_leftovers(found, CommandConsole())
    if found.has_problem:
        raise typer.Exit(ExitCode.PROBLEM)


def _diagnosed(helpers: Iterable[Run], rules: StallRules) -> Iterator[Diagnosis]:
    for helper in helpers:
        with contextlib.suppress(TapeError):  # damaged: what can be read of the run itself is still shown
            yield diagnose_run(helper, rules)
