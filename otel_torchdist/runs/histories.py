"""Sources of recorded calls, read one rank at a time, and their headlines."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.config import Config
from otel_torchdist.errors import RunError, TapeError
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.text import readable
from otel_torchdist.model.times import day_and_time
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.runs.targets import Target, chosen_archived_run, chosen_run
from otel_torchdist.sources.archive.reading import ArchivedRank, is_archive
from otel_torchdist.sources.archive.reading import history_of as history_of_archive
from otel_torchdist.sources.flight.groups import RecordedGroups
from otel_torchdist.sources.flight.history import CondensedDump, with_durations
from otel_torchdist.sources.flight.history import history_of as history_of_dump
from otel_torchdist.sources.flight.reading.reader import read_dumps, read_whole
from otel_torchdist.sources.history.tapes import history_of
from otel_torchdist.sources.profiles.groups import ProfiledGroups
from otel_torchdist.sources.profiles.history import gaps_in
from otel_torchdist.sources.profiles.history import histories_of as histories_of_profiles
from otel_torchdist.sources.profiles.profile import TraceKind
from otel_torchdist.sources.profiles.reading.reader import kinds_in, read_profiles
from otel_torchdist.system.progress import progress, track
from otel_torchdist.tape.reading.reader import TapeReader

_NOTHING_READABLE: Final = "no dump of the flight recorder and no trace of PyTorch's profiler that can be read"


@dataclass(slots=True)
class Source:
    """The histories of a job's ranks, with a description of their source.

    Attributes:
        headline: Describes the run, dumps or traces.
        run_id: Id of the run, 32 hex digits; None for dumps and traces.
        location: Path of the job directory, or of the files, for messages.
        histories: One history a rank. Can be iterated once.
        read_again: Reads the histories of some ranks a second time, without repeating warnings.
        warnings: Unreadable parts. Complete once `histories` is exhausted.
        has_times: False for execution traces, whose calls have no times.
        empty_message: Error message if no group has any call.
    """

    headline: str
    run_id: str | None
    location: str
    histories: Iterator[RankHistory]
    read_again: Callable[[Collection[int]], Iterator[RankHistory]]
    warnings: list[str] = field(default_factory=list[str])
    has_times: bool = True
    empty_message: str = "no calls of any rank"


def source_of(wanted: Target) -> Source:
    """Read a run, an archive, dumps or traces.

    Raises:
        RunError: No run, or more than one, matches.
    """
    if wanted.paths and all(map(is_archive, wanted.paths)):
        return source_of_archive(wanted.paths, wanted.run)
    if wanted.paths:
        return source_of_paths(wanted.paths)[0]
    chosen = chosen_run(Config.from_environment(), wanted.run, wanted.run_dir)
    source = source_of_run(chosen.run)
    source.warnings.extend(chosen.unreadable)
    return source


def timed_source_of(wanted: Target) -> Source:
    """Read like `source_of`.

    Raises:
        RunError: No run, or more than one, matches, or its calls have no times.
    """
    source = source_of(wanted)
    if not source.has_times:
        raise RunError(
            f"{source.location}: execution traces have no times; `otel-torchdist analyze --only graph` reads them"
        )
    return source


def source_of_paths(paths: Sequence[Path]) -> tuple[Source, bool]:
    """Read the dumps or traces of one job. Returns the source, and whether it has traces.

    Raises:
        RunError: There are both dumps and traces.
    """
    kinds = kinds_in(paths)
    if kinds.traces and kinds.dumps:
        raise RunError(
            f"{_path_names(paths)}: dumps of the flight recorder, such as {kinds.dumps[0]}, and traces of a profiler, "
            f"such as {kinds.traces[0]}; name only one kind"
        )
    if kinds.traces:
        return source_of_traces(paths, kinds.trace_bytes, len(kinds.traces)), True
    return source_of_dumps(paths, len(kinds.dumps)), False


def _path_names(paths: Sequence[Path]) -> str:
    return ", ".join(readable(str(path)) for path in paths)


def source_of_run(run: Run) -> Source:
    """Read a run from its tapes; its ranks may be running."""
    begun, label = day_and_time(run.begun_ns), run.label or "without an id"
    source = Source(
        headline=f"run {label}, started {begun} on {run.host}, {len(run.ranks)} of {run.world_size} ranks report",
        run_id=f"{run.run_id:032x}" if run.run_id else None,
        location=readable(run.place),
        histories=iter(()),
        read_again=lambda ranks: _tapes(_reopened_tapes(run.tapes, ranks), len(ranks), [], now_ns),
    )
    now_ns = time.monotonic_ns()
    source.histories = _tapes(run.tapes, len(run.tapes), source.warnings, now_ns)
    return source


@contextlib.contextmanager
def reopened(run: Run) -> Generator[Run]:
    """Open the tapes of a run a second time: a `TapeReader` returns each record once, to one caller."""
    with contextlib.ExitStack() as stack:
        tapes: list[TapeReader] = []
        for tape in run.tapes:
            with contextlib.suppress(TapeError):
                tapes.append(stack.enter_context(contextlib.closing(TapeReader(tape.path))))
        yield dataclasses.replace(run, tapes=tuple(tapes)) if tapes else run


def _reopened_tapes(tapes: Iterable[TapeReader], ranks: Collection[int]) -> Iterator[TapeReader]:
    """Open the tapes of some ranks a second time, at their first record, one after the other."""
    for tape in tapes:
        if tape.identity.rank in ranks:
            with contextlib.suppress(TapeError), contextlib.closing(TapeReader(tape.path)) as reopened_tape:
                yield reopened_tape


def _tapes(tapes: Iterable[TapeReader], count: int, warnings: list[str], now_ns: int) -> Iterator[RankHistory]:
    """Read tapes one after the other, up to the same moment, so that ranks read later do not seem to be ahead."""
    for tape in track(tapes, "Reading tapes", "tapes", count):
        try:
            history = history_of(tape)
        except TapeError as error:
            warnings.append(f"{tape.path}: {error}")
            continue
        if tape.is_alive():  # a copy of a tape may be from a machine whose clock is ahead of ours
            entered = tuple(view for view in history.operations if view.record.entered_ns <= now_ns)
            history = dataclasses.replace(history, operations=entered)
        yield history


def source_of_archive(paths: Sequence[Path], prefix: str) -> Source:
    """Read a run from its archive.

    Raises:
        RunError: No run, or more than one, matches.
    """
    run, notes = chosen_archived_run(paths, prefix)
    origin = run.origin()
    ranks = f"{len(run.ranks)} of {origin.world_size} ranks" if origin is not None else f"{len(run.ranks)} ranks"
    host = f" on {origin.host}" if origin is not None else ""
    source = Source(
        headline=f"archive of run {run.label}, started {day_and_time(run.begun_ns)}{host}, {ranks}",
        run_id=f"{run.run_id:032x}",
        location=", ".join(readable(str(path)) for path in paths),
        histories=iter(()),
        read_again=lambda ranks: _archived([archived for archived in run.ranks if archived.rank in ranks], []),
        warnings=notes,
    )
    source.histories = _archived(run.ranks, source.warnings)
    return source


def _archived(ranks: Sequence[ArchivedRank], warnings: list[str]) -> Iterator[RankHistory]:
    with progress("Reading the archive", "calls", sum(rank.operations for rank in ranks)) as advance:
        for rank in ranks:
            history = history_of_archive(rank, warnings, advance=advance)
            if history is not None:
                yield history


def source_of_dumps(paths: Sequence[Path], files: int | None = None) -> Source:
    """Read the dumps of one job; `files` is the number of dumps, if known."""
    with progress("Reading dumps", "dumps", files) as advance:
        read = read_dumps(paths, advance=advance)
    count = len(read.dumps)
    return Source(
        headline=f"dumps of the flight recorder of {count} rank{'s' * (count != 1)}",
        run_id=None,
        location=_path_names(paths),
        histories=_dumps(paths, read.dumps),
        read_again=lambda ranks: (history for history in _dumps(paths, read.dumps) if history.rank in ranks),
        warnings=list(read.notes),
        empty_message="no calls of any rank" if count else _NOTHING_READABLE,
    )


def source_of_traces(paths: Sequence[Path], size: int, files: int) -> Source:
    """Read the traces of one job; `size` is the total size of the `files` traces, in bytes."""
    with progress("Reading traces", "traces", files) as advance:
        read = read_profiles(paths, size, advance)
    groups = ProfiledGroups(read.profiles)
    count, kinds = len(read.profiles), {profile.kind for profile in read.profiles}
    format_name = "execution traces" if kinds == {TraceKind.EXECUTION} else "traces of PyTorch's profiler"
    of_world = f" of {groups.world_size}" if groups.world_size > count else ""
    return Source(
        headline=f"{format_name} of {count}{of_world} rank{'s' * (max(count, groups.world_size) != 1)}",
        run_id=None,
        location=_path_names(paths),
        histories=track(histories_of_profiles(read.profiles, groups), "Converting traces", "traces", count),
        read_again=lambda ranks: (
            history for history in histories_of_profiles(read.profiles, groups) if history.rank in ranks
        ),
        warnings=[*read.notes, *gaps_in(read.profiles, groups)],
        has_times=kinds != {TraceKind.EXECUTION},
        empty_message="no calls in groups whose members are known" if read.profiles else "no trace that can be read",
    )


def _dumps(paths: Sequence[Path], dumps: Sequence[CondensedDump]) -> Iterator[RankHistory]:
    groups = RecordedGroups([condensed.dump for condensed in dumps])
    for dump in track(read_whole(paths, dumps), "Reading calls", "dumps", len(dumps)):
        yield with_durations(history_of_dump(dump, groups), dump)
