"""Finds and opens runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from otel_torchdist.config import Config
from otel_torchdist.errors import RunError, TapeError
from otel_torchdist.formats import OtherFormatError
from otel_torchdist.model.times import iso_time
from otel_torchdist.node.job.runs.runs import whole_index
from otel_torchdist.runs.histories import source_of_archive, source_of_paths, source_of_run
from otel_torchdist.runs.listing import ListedRun, listed
from otel_torchdist.runs.recorded_run import RecordedRun, RunKind
from otel_torchdist.runs.targets import Target, chosen_run, target_of
from otel_torchdist.sources.archive.reading import ArchivedRun, is_archive, runs_in


def open_run(*paths: str | os.PathLike[str] | ListedRun) -> RecordedRun:
    """Open a run. Nothing is changed, and no rank is asked.

    Args:
        *paths: One of these:

            - nothing: the run on this node that started last
            - the first digits of the id of a run on this node
            - a job directory, or a copy of one; the run may be live
            - an archive, followed by the first digits of a run's id if it holds several
            - dumps of PyTorch's flight recorder, or traces of its profiler: folders, archives, or files
            - an entry of `find_runs`

    Raises:
        RunError: There is no such run, more than one matches, or it cannot be read.
    """
    target = _target(paths)
    if not target.paths:
        return _open_tapes(target)
    if all(map(is_archive, target.paths)):
        source = source_of_archive(target.paths, target.run)
        return RecordedRun(Target(source.run_id or "", paths=target.paths), RunKind.ARCHIVE, source)
    source, has_traces = source_of_paths(target.paths)
    return RecordedRun(target, RunKind.TRACES if has_traces else RunKind.DUMPS, source)


def _target(paths: Sequence[str | os.PathLike[str] | ListedRun]) -> Target:
    entries = [path for path in paths if isinstance(path, ListedRun)]
    if not entries:
        return target_of([os.fspath(path) for path in paths if not isinstance(path, ListedRun)], None)
    if len(paths) > 1:
        raise RunError("an entry of `find_runs` is one run: open several one after the other")
    entry, folder = entries[0], Path(entries[0].directory)
    return Target(entry.id or "", paths=(folder,)) if is_archive(folder) else Target(entry.id or "", folder)


def _open_tapes(target: Target) -> RecordedRun:
    """Open tapes: later reads name the run and its directory, because a newer run may have begun by then."""
    chosen = chosen_run(Config.from_environment(), target.run, target.run_dir)
    try:
        source = source_of_run(chosen.run)
        source.warnings.extend(chosen.unreadable)
        return RecordedRun(Target(source.run_id or "", chosen.run.directory), RunKind.TAPES, source)
    finally:
        chosen.index.close()


def find_runs(path: str | os.PathLike[str] | None = None) -> tuple[ListedRun, ...]:
    """List runs, the newest first.

    Args:
        path: An archive, or a job directory; None for all runs that left a tape on this node.

    Raises:
        RunError: The path cannot be read.
    """
    folder = None if path is None else Path(path).expanduser()
    if folder is not None and is_archive(folder):
        try:
            return tuple(_archived(run, folder) for run in runs_in([folder])[0])
        except OtherFormatError as error:
            raise RunError(str(error)) from error
    if folder is not None and not folder.is_dir():
        raise RunError(f"{folder}: neither an archive nor a job directory")
    try:
        index = whole_index(Config.from_environment(), folder)
    except TapeError as error:
        raise RunError(str(error)) from error
    try:
        return listed(index.runs)
    finally:
        index.close()


def _archived(run: ArchivedRun, archive: Path) -> ListedRun:
    origin = run.origin()
    return ListedRun(
        id=f"{run.run_id:032x}",
        directory=str(archive),
        begun=iso_time(run.begun_ns),
        state="archived",
        ranks=tuple(rank.rank for rank in run.ranks),
        world_size=origin.world_size if origin is not None else len(run.ranks),
        helps=None,
    )
