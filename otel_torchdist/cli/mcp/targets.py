"""The run or files that an assistant names, found within the readable directories and opened for one call."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

from otel_torchdist.cli.mcp.roots import ReadableRoots
from otel_torchdist.config import Config
from otel_torchdist.errors import RunError
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.bundled import PREFIX, SUFFIX
from otel_torchdist.node.job.directory import job_directories, tapes_in
from otel_torchdist.node.job.runs.runs import RunIndex, index_of
from otel_torchdist.runs.bundles import chosen_bundle
from otel_torchdist.runs.listing import ListedRun, listed
from otel_torchdist.runs.opening import find_runs
from otel_torchdist.runs.targets import ChosenRun, Target, chosen_run
from otel_torchdist.show.report.reading import is_report
from otel_torchdist.sources.archive.reading import is_archive
from otel_torchdist.sources.bundles.reading import unpack

MAX_FILES: Final = 64
"""Upper bound on the bundles, and on the reports, that are listed."""
_MAX_LISTED: Final = 8
_ID: Final = re.compile(r"[0-9a-fA-F]{1,32}")
_ARCHIVED: Final = "archived"
_SCRATCH: Final = "otel-torchdist-mcp-"


class RunTargets:
    """Finds what an assistant names.

    Attributes:
        roots: The readable directories.
        config: The settings of this process.
    """

    def __init__(self, roots: ReadableRoots, config: Config) -> None:
        """Find runs below `roots`."""
        self.roots = roots
        self.config = config
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """Remove unpacked bundles, also of a call in progress."""
        if self._scratch is not None:
            self._scratch.cleanup()

    # --- lists --------------------------------------------------------------------------------------------------------

    def runs(self, path: str | None) -> tuple[list[ListedRun], list[str]]:
        """Return the runs below a path or below all readable directories, the newest first, and warnings.

        Raises:
            RunError: The path cannot be read.
        """
        found: dict[tuple[str | None, str], ListedRun] = {}
        warnings: list[str] = []
        for folder in [self.roots.checked(path)] if path is not None else self.roots.directories():
            for run in self._runs_at(folder, warnings):
                found.setdefault((run.id, run.directory), run)
        return sorted(found.values(), key=lambda run: run.begun, reverse=True), warnings

    def bundles(self) -> list[str]:
        """Return the bundles in the readable directories and their subfolders, the newest name first."""
        names = (path for path in self._files() if path.name.startswith(PREFIX) and path.name.endswith(SUFFIX))
        return [str(path) for path in sorted(names, key=lambda path: path.name, reverse=True)[:MAX_FILES]]

    def reports(self) -> list[str]:
        """Return the reports that `analyze --html` has written there."""
        return [str(path) for path in self._files() if path.suffix == ".html" and is_report(path)][:MAX_FILES]

    def _runs_at(self, folder: Path, warnings: list[str]) -> Iterator[ListedRun]:
        with _index_at(folder) as index:
            warnings.extend(index.unreadable)
            yield from listed(index.runs)
        if is_archive(folder):
            try:
                yield from find_runs(folder)
            except RunError as error:  # of another format: the other directories can still be read
                warnings.append(str(error))

    def _files(self) -> Iterator[Path]:
        """Yield the files in the readable directories and in their subfolders.

        Links are left out, and names that JSON cannot have.
        """
        for root in self.roots.directories():
            for folder in (root, *(Path(entry) for entry in _entries(root) if entry.is_dir(follow_symlinks=False))):
                yield from (Path(entry) for entry in _entries(folder) if entry.is_file(follow_symlinks=False))

    # --- one of them --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self, run: str, path: str | None) -> Generator[Target]:
        """Yield what to read; a bundle is unpacked until the end of this block.

        Args:
            run: The first digits of a run's id; '' for the newest run.
            path: A job directory, archive, bundle, dump, trace or log, or a folder of them; None to look in all
                readable directories.

        Raises:
            RunError: There is no such run, more than one matches, or the path is outside the readable directories.
        """
        if run and not _ID.fullmatch(run):
            raise RunError(f"{readable(run)}: the first hexadecimal digits of a run's id are expected")
        if path is None:
            yield self._newest(*self.runs(None), run, "the readable directories")
            return
        place = self.roots.checked(path)
        if place.is_dir() and tapes_in(place):
            yield Target(run, place)
        elif is_archive(place):
            yield Target(run, paths=(place,))
        elif (bundle := chosen_bundle((place,), run)) is not None:
            with tempfile.TemporaryDirectory(dir=self._folder(), ignore_cleanup_errors=True) as folder:
                unpacked = unpack(bundle.path, Path(folder))
                if unpacked is None:
                    raise RunError(f"{readable(str(bundle.path))}: no bundle of evidence that can be read")
                yield Target(run_dir=unpacked.directory, notes=(*bundle.notes, *unpacked.notes))
        elif place.is_dir() and job_directories(place):
            yield self._newest(*self.runs(path), run, readable(path))
        elif run:
            raise RunError(f"{readable(path)}: no runs with ids are here; leave `run` out to read dumps or logs")
        else:
            yield Target(paths=(place,))

    @contextlib.contextmanager
    def chosen(self, target: Target) -> Generator[ChosenRun]:
        """Yield the run of a target without paths, with its tapes open.

        Raises:
            RunError: No run, or more than one, matches.
        """
        chosen = chosen_run(self.config, target.run, target.run_dir)
        try:
            yield chosen
        finally:
            chosen.index.close()

    def _newest(self, runs: list[ListedRun], warnings: list[str], prefix: str, where: str) -> Target:
        """Return the newest run that matches; tapes have the state of processes, which archives lack."""
        matches = [run for run in runs if (run.id or "").startswith(prefix.lower())]
        if not prefix:  # helper processes begin after the run that they help
            matches = [run for run in matches if run.helps is None] or matches
        chosen = next((run for run in matches if run.state != _ARCHIVED), next(iter(matches), None))
        if chosen is None:
            known = ", ".join((run.id or "")[:8] or "one without an id" for run in runs[:_MAX_LISTED])
            raise RunError(
                f"{where}: no run begins with {prefix}; the newest are {known}"
                if known
                else f"{where}: no run has left a tape here: was recording switched on, here and for this user?",
                warnings,
            )
        ids = {run.id for run in matches}
        if prefix and len(ids) > 1:
            raise RunError(f"{len(ids)} runs begin with {prefix}: {', '.join(sorted(filter(None, ids))[:_MAX_LISTED])}")
        folder = Path(chosen.directory)
        self.roots.check_links(folder)
        return (
            Target(chosen.id or "", paths=(folder,)) if chosen.state == _ARCHIVED else Target(chosen.id or "", folder)
        )

    def _folder(self) -> str:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True)
        return self._scratch.name


@contextlib.contextmanager
def _index_at(folder: Path) -> Generator[RunIndex]:
    """Yield the runs of a job directory, or of all job directories in a base directory."""
    index = index_of([folder] if tapes_in(folder) else job_directories(folder))
    try:
        yield index
    finally:
        index.close()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return sorted((entry for entry in entries if entry.name.isprintable()), key=lambda entry: entry.name)
    return []
