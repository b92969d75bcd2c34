"""The target of a command: a recorded run, or files at paths; and explanations if it does not exist."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.text import MAX_LINE, day_and_time, fail
from otel_torchdist.config import Config
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_ENABLED
from otel_torchdist.errors import TapeError
from otel_torchdist.model.naming import have, listed_ranks, name_ranks, readable
from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.node.job.runs.runs import Run, RunIndex, SeveralRunsError, select, tape_directory, whole_index
from otel_torchdist.package import INSTRUMENTATION_NAME
from otel_torchdist.sources.archive.reading import ArchivedRun, is_archive, runs_in

_AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def reasons(environ: Mapping[str, str], config: Config) -> list[str]:
    """Return the settings that prevent recording of jobs with this environment, one sentence each.

    `config` is the configuration read from `environ`.
    """
    obstacles: list[str] = []
    switch = environ.get(OTEL_PYTHON_TORCHDIST_ENABLED, "").strip()
    if not switch:
        return obstacles  # a job may have it in its own environment
    if not config.enabled:
        obstacles.append(f"{OTEL_PYTHON_TORCHDIST_ENABLED}={switch} is not `true`")
    autoload = environ.get(_AUTOLOAD, "1")
    if autoload != "1":  # torch accepts no other value
        obstacles.append(
            f"{_AUTOLOAD}={autoload} keeps torch from loading otel_torchdist: leave it out, start the job with "
            "`opentelemetry-instrument`, or call `TorchDistInstrumentor().instrument()`"
        )
    if config.sdk_disabled:
        obstacles.append("OTEL_SDK_DISABLED=true switches all of OpenTelemetry off")
    for name in sorted(config.disabled_instrumentations & {INSTRUMENTATION_NAME, "*"}):
        obstacles.append(f"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS contains `{name}`")
    return obstacles


def with_reasons(message: str, environ: Mapping[str, str], config: Config) -> str:
    """Append possible reasons to a message that no job exists."""
    return "\n".join([message, *(f"  {reason}" for reason in reasons(environ, config))])


_ID: Final = re.compile(r"[0-9a-fA-F]{1,32}")
_STEPS: Final = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")
_MAX_LISTED: Final = 16
_LISTED: Final = "`otel-torchdist diagnose --list` lists all runs"


@dataclass(frozen=True, slots=True)
class Target:
    """The run or files that a command is to read.

    Attributes:
        run: The first digits of a run's id; '' for the run that started last, or the only one of an archive.
        run_dir: The job directory to search for the run; None for all.
        paths: Archives, or files of a job that was not recorded; empty for a run.
    """

    run: str = ""
    run_dir: Path | None = None
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """The requested run, and the index of all runs."""

    run: Run
    index: RunIndex

    @property
    def unreadable(self) -> list[str]:
        """Return the unreadable tapes of this run with reasons, one line each."""
        return [line for line in self.index.unreadable if line.startswith(str(self.run.directory))]


def target_of(arguments: Sequence[str], run_dir: Path | None) -> Target:
    """Decide whether arguments are a run's id or paths; ends the command if they are neither.

    An argument that could be either is a path if the path exists. A folder of tapes is the job directory of a run.

    Args:
        arguments: Arguments as typed.
        run_dir: Value of `--run-dir`.

    Raises:
        typer.BadParameter: Both paths and `run_dir` are given.
    """
    paths = tuple(Path(argument).expanduser() for argument in arguments)
    is_id = len(arguments) == 1 and _ID.fullmatch(arguments[0]) is not None and not paths[0].exists()
    if not arguments or is_id:
        return Target("".join(arguments), run_dir)
    run = ""
    if len(paths) > 1 and _ID.fullmatch(arguments[-1]) and not paths[-1].exists() and is_archive(paths[0]):
        run, paths = arguments[-1], paths[:-1]
    if run_dir is not None:
        raise typer.BadParameter("a path and --run-dir exclude each other", param_hint="--run-dir")
    missing = next((path for path in paths if not os.path.lexists(path)), None)
    if missing is not None:
        is_path = os.sep in str(missing) or len(paths) > 1
        reason = "no such file or directory" if is_path else f"neither a run's id nor a path; {_LISTED}"
        fail(f"{readable(str(missing))}: {reason}", ExitCode.NOTHING_FOUND)
    if len(paths) == 1 and paths[0].is_dir() and tapes_in(paths[0].resolve()):
        return Target(run_dir=paths[0].resolve())
    return Target(run, paths=paths)


def chosen_archived_run(paths: Sequence[Path], prefix: str) -> tuple[ArchivedRun, list[str]]:
    """Return a run from archives, and warnings; ends the command if no run, or more than one, matches.

    Args:
        paths: Archives, or parts of them.
        prefix: The first digits of the run's id; '' for the only run.
    """
    runs, notes = runs_in(paths)
    matches = [run for run in runs if f"{run.run_id:032x}".startswith(prefix.lower())]
    if len(matches) == 1:
        return matches[0], notes
    warn(notes)
    where = ", ".join(readable(str(path)) for path in paths)
    if not runs:
        fail(f"{where}: an archive without a readable segment", ExitCode.NOTHING_FOUND)
    if not matches:
        fail(f"{where}: no run begins with {prefix}; it has {_listed(runs)}", ExitCode.NOTHING_FOUND)
    fail(
        f"{where}: {len(matches)} runs: add the first digits of one's id, or name its folder: {_listed(matches)}",
        ExitCode.NOTHING_FOUND,
    )


def _listed(runs: Sequence[ArchivedRun]) -> str:
    """Format runs as `1234abcd (started 2026-11-21 12:46:05, 4 ranks), …`, newest first."""
    shown = [
        f"{run.label} (started {day_and_time(run.begun_ns)}, {len(run.ranks)} rank{'s' * (len(run.ranks) != 1)})"
        for run in runs[:_MAX_LISTED]
    ]
    more = len(runs) - len(shown)
    return ", ".join([*shown, f"and {more} more"] if more else shown)


def chosen_run(config: Config, prefix: str, run_dir: Path | None) -> ChosenRun:
    """Find a run; ends the command if no run, or more than one, matches.

    Args:
        config: The settings.
        prefix: The first digits of the run's id; '' for the run that started last.
        run_dir: The job directory to search; None for all.
    """
    try:
        index = whole_index(config, run_dir)
        run = select(index.runs, prefix) if prefix else next(iter(index.runs), None)
        where = run_dir or tape_directory(config)
    except (SeveralRunsError, TapeError) as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    if run is not None:
        return ChosenRun(run, index)
    warn(index.unreadable)
    if not index.runs:
        fail(with_reasons(f"{where}: no tape that can be read", os.environ, config), ExitCode.NOTHING_FOUND)
    fail(f"no run begins with {prefix}; {_LISTED}", ExitCode.NOTHING_FOUND)


def ranks_of(text: str) -> frozenset[int] | None:
    """Return the ranks that `--ranks` lists, such as `0-7,12`; None for all.

    Raises:
        typer.BadParameter: A part is neither a rank nor a range of ranks.
    """
    if not text.strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not listed_ranks(part)), None)
    if wrong is not None:
        raise typer.BadParameter(f"{wrong!r}: expected ranks such as 0-7,12", param_hint="--ranks")
    return frozenset(rank for part in parts for rank in listed_ranks(part))


def without_calls(wanted: Collection[int] | None, with_calls: Iterable[int]) -> list[str]:
    """Return a warning about ranks in `--ranks` without calls; empty if there are none.

    Args:
        wanted: The ranks in `--ranks`; None for all.
        with_calls: Ranks with calls.
    """
    missing = sorted({*(wanted or ())}.difference(with_calls))
    return [f"--ranks: {name_ranks(missing)} {have(missing)} no calls here"] if missing else []


def steps_of(text: str) -> tuple[int, int] | None:
    """Return the first and last step in `--steps`, such as `100-110`; None if the option is not given.

    Raises:
        typer.BadParameter: The text is neither a step nor a range of steps.
    """
    if not text:
        return None
    match = _STEPS.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
    if first > last:
        raise typer.BadParameter(
            f"{text!r}: expected a step or a range of steps, such as 100-110", param_hint="--steps"
        )
    return first, last


def warn(lines: Iterable[str]) -> None:
    """Print warnings, one line each: line breaks in file names are escaped."""
    for line in lines:
        typer.echo(f"otel-torchdist: warning: {readable(line, MAX_LINE)}", err=True)
