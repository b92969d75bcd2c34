"""The run or files to read: found by id or path, with an explanation if there are none."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.config import Config
from otel_torchdist.errors import RunError, TapeError
from otel_torchdist.formats import OtherFormatError
from otel_torchdist.model.text import readable
from otel_torchdist.model.times import day_and_time
from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.node.job.runs.runs import Run, RunIndex, SeveralRunsError, select, tape_directory, whole_index
from otel_torchdist.node.job.slurm import first_of_slurm_job, this_slurm_job
from otel_torchdist.runs.bundles import chosen_bundle, is_bundle_folder, unpacked
from otel_torchdist.runs.obstacles import with_reasons
from otel_torchdist.sources.archive.reading import ArchivedRun, is_archive, runs_in

_ID: Final = re.compile(r"[0-9a-fA-F]{1,32}")
_MAX_LISTED: Final = 16
_LIST_HINT: Final = "`otel-torchdist diagnose --list` lists all runs"


@dataclass(frozen=True, slots=True)
class Target:
    """The run or files that a command is to read.

    Attributes:
        run: The first digits of a run's id; '' for the run that started last, or the only one of an archive.
        run_dir: The job directory to search for the run; None for all.
        paths: Archives, or files of a job that was not recorded; empty for a run.
        notes: Notes about what was chosen and could not be read, for people.
    """

    run: str = ""
    run_dir: Path | None = None
    paths: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """The requested run, and the index of all runs."""

    run: Run
    index: RunIndex

    @property
    def unreadable(self) -> list[str]:
        """Return the unreadable tapes of this run with reasons, one line each."""
        return [line for line in self.index.unreadable if line.startswith(str(self.run.directory))]


def is_run_id(arguments: Sequence[str]) -> bool:
    """Return whether arguments are at most a run's id, and not paths."""
    if not arguments:
        return True
    is_id = len(arguments) == 1 and _ID.fullmatch(arguments[0]) is not None
    return is_id and not Path(arguments[0]).expanduser().exists()


def target_of(arguments: Sequence[str], run_dir: Path | None, opens_bundles: bool = True) -> Target:
    """Decide whether arguments are a run's id or paths.

    An argument that could be either is a path if the path exists. A folder of tapes is the job directory of a run, and
    a bundle of evidence contains one.

    Args:
        arguments: A run's id, or paths.
        run_dir: The job directory to search for the run; None for all. It excludes paths.
        opens_bundles: Whether to read the tapes in a bundle, and not the dumps of the flight recorder in it.

    Raises:
        RunError: They are neither.
    """
    paths = tuple(Path(argument).expanduser() for argument in arguments)
    if is_run_id(arguments):
        return Target("".join(arguments), run_dir)
    run = ""
    if (
        len(paths) > 1
        and _ID.fullmatch(arguments[-1])
        and not paths[-1].exists()
        and (is_archive(paths[0]) or is_bundle_folder(paths[0]))
    ):
        run, paths = arguments[-1], paths[:-1]
    missing = next((path for path in paths if not os.path.lexists(path)), None)
    if missing is not None:
        looks_like_path = os.sep in str(missing) or len(paths) > 1
        reason = "no such file or directory" if looks_like_path else f"neither a run's id nor a path; {_LIST_HINT}"
        raise RunError(f"{readable(str(missing))}: {reason}")
    if len(paths) == 1 and paths[0].is_dir() and tapes_in(paths[0].resolve()):
        return Target(run_dir=paths[0].resolve())
    if opens_bundles and not any(map(is_archive, paths)) and (bundle := chosen_bundle(paths, run)) is not None:
        directory, notes = unpacked(bundle.path)
        return Target(run_dir=directory, notes=(*bundle.notes, *notes))
    return Target(run, paths=paths)


def chosen_archived_run(paths: Sequence[Path], prefix: str) -> tuple[ArchivedRun, list[str]]:
    """Return a run from archives, and warnings.

    Args:
        paths: Archives, or parts of them.
        prefix: The first digits of the run's id; '' for the only run.

    Raises:
        RunError: No run, or more than one, matches.
    """
    try:
        runs, notes = runs_in(paths)
    except OtherFormatError as error:
        raise RunError(str(error)) from error
    matches = [run for run in runs if f"{run.run_id:032x}".startswith(prefix.lower())]
    if len(matches) == 1:
        return matches[0], notes
    where = ", ".join(readable(str(path)) for path in paths)
    if not runs:
        raise RunError(f"{where}: an archive without a readable segment", notes)
    if not matches:
        raise RunError(f"{where}: no run begins with {prefix}; it has {_listed(runs)}", notes)
    raise RunError(
        f"{where}: {len(matches)} runs: add the first digits of a run's id, or name its folder: {_listed(matches)}",
        notes,
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
    """Find a run.

    Args:
        config: The settings.
        prefix: The first digits of the run's id; '' for the run that started last, inside a Slurm job that of the job.
        run_dir: The job directory to search; None for all.

    Raises:
        RunError: No run, or more than one, matches.
    """
    try:
        index = whole_index(config, run_dir)
        run = select(index.runs, prefix) if prefix else _newest(index.runs, this_slurm_job())
        where = run_dir or tape_directory(config)
    except (SeveralRunsError, TapeError) as error:
        raise RunError(str(error)) from error
    if run is not None:
        return ChosenRun(run, index)
    if not index.runs and index.refused:
        raise RunError(index.refused[0], index.unreadable[1:])
    if not index.runs:
        message = with_reasons(f"{where}: no tape that can be read", os.environ, config)
        raise RunError(message, index.unreadable)
    raise RunError(f"no run begins with {prefix}; {_LIST_HINT}", index.unreadable)


def _newest(runs: Sequence[Run], slurm_job: str) -> Run | None:
    """Return the first of some runs, if possible of a Slurm job; None if there are none."""
    directory = first_of_slurm_job(dict.fromkeys(run.directory for run in runs), slurm_job)
    return next((run for run in runs if directory in (None, run.directory)), None)
