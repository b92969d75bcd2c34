"""`otel-torchdist reproduce`: a script that hangs as a run did, to be attached to an issue."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final

import typer

from otel_torchdist.cli.completion import complete_run
from otel_torchdist.cli.diagnose.diagnosis import Diagnosis, diagnose_run
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.text import day_and_time, fail, shown
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.history.model import RankHistory
from otel_torchdist.history.tapes import histories_of
from otel_torchdist.job.runs import Run, SeveralRunsError, select, tape_directory, whole_index
from otel_torchdist.reproducer.facts import Origin
from otel_torchdist.reproducer.model import NotReproducibleError
from otel_torchdist.reproducer.planning import plan
from otel_torchdist.reproducer.source import source_of
from otel_torchdist.verdict.rules import StallRules

_USUAL_NAME: Final = "hang.py"


def reproduce(
    run: Annotated[
        str,
        typer.Argument(
            help="The first digits of the run's id. Without it: the run that started last.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = "",
    run_dir: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, resolve_path=True, help="The job directory, or a copy of one."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds after which an open operation counts as stalled; as in `diagnose`."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="The file to write; without it, the standard output."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """To report a hang: write a short script that hangs in the same way under torchrun, with torch alone.

    It makes the last calls of the ranks that the verdict is about, with gloo on one machine: the same operations,
    groups, shapes and order; the rank that did not come stays away.
    """
    if output is not None and output.exists() and not force:
        fail(f"{shown(output)} exists; --force replaces it", ExitCode.NO_DIRECTORY)
    config = Config.from_environment()
    chosen = _choose(config, run, run_dir)
    try:
        diagnosis = diagnose_run(chosen, StallRules.from_config(config, threshold))
        histories, unreadable = all_calls_of(chosen)
    except TapeError as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    for warning in dict.fromkeys((*diagnosis.warnings, *unreadable)):
        typer.echo(f"otel-torchdist: warning: {warning}", err=True)
    _write(_script(diagnosis, histories, output), output, force)


def _choose(config: Config, prefix: str, run_dir: Path | None) -> Run:
    try:
        runs = whole_index(config, run_dir).runs
        found = select(runs, prefix) if prefix else next(iter(runs), None)
    except (SeveralRunsError, TapeError) as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    if found is not None:
        return found
    if runs:
        fail(f"no run begins with {prefix}; `otel-torchdist diagnose --list` lists all runs", ExitCode.NOTHING_FOUND)
    fail(f"{run_dir or tape_directory(config)}: no tape that can be read", ExitCode.NOTHING_FOUND)


def all_calls_of(run: Run) -> tuple[list[RankHistory], list[str]]:
    """All recorded calls of a run, by readers of their own: those of the run may have been read to the end.

    Raises:
        TapeError: A tape is gone.
    """
    with contextlib.ExitStack() as stack:
        again = [stack.enter_context(contextlib.closing(type(tape)(tape.path))) for tape in run.tapes]
        return histories_of(dataclasses.replace(run, tapes=tuple(again)))


def _script(diagnosis: Diagnosis, histories: Sequence[RankHistory], output: Path | None) -> str:
    run = diagnosis.run
    label = f"run {run.label}, " if run.label else ""
    origin = Origin(
        source=f"{label}{day_and_time(diagnosis.wall_ns(diagnosis.moment_ns))}",
        sentence=diagnosis.verdict_text,
        world_size=run.world_size,
        versions=_versions(),
    )
    try:
        script = plan(diagnosis.found, histories, origin)
    except NotReproducibleError as error:
        fail(f"no script: {error}", ExitCode.NOT_REPRODUCIBLE)
    return source_of(script, _USUAL_NAME if output is None else output.name)


def _versions() -> str:
    """What has read the run; the torch of the job is not recorded, but most often it is the one beside us."""
    ours = f"otel-torchdist {version('otel-torchdist')}"
    try:
        return f"{ours}, beside torch {version('torch')}"
    except PackageNotFoundError:
        return ours


def _write(source: str, output: Path | None, force: bool) -> None:
    if output is None:
        typer.echo(source, nl=False)
        return
    try:
        with output.open("w" if force else "x", encoding="ascii") as file:
            file.write(source)
    except OSError as error:
        fail(f"{shown(output)}: {error.strerror}", ExitCode.NO_DIRECTORY)
    typer.echo(f"otel-torchdist: wrote {shown(output)}", err=True)
