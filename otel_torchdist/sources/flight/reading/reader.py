"""Reads the dumps of a job from a user's paths, and reports the files left out, with reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

from otel_torchdist.model.text import name_ranks
from otel_torchdist.sources.flight.dump import FlightDump
from otel_torchdist.sources.flight.history import CondensedDump, condense
from otel_torchdist.sources.flight.reading.decoding import PICKLE, DecodedDump, DumpError, NotADumpError, decode
from otel_torchdist.sources.flight.reading.jobs import FoundJob, sort_into_jobs
from otel_torchdist.sources.flight.reading.limits import DEFAULT_LIMITS, NO_MEMORY, ReadingLimits, UnreadableError
from otel_torchdist.sources.flight.reading.parallel import read_each
from otel_torchdist.sources.flight.reading.sources import FoundFile, Skipped, find_files
from otel_torchdist.system.progress import Advance, unreported
from otel_torchdist.system.this_process.commands import without_collecting_garbage
from otel_torchdist.tape.layout import MAX_RANKS

_EXTENSIONS: Final = frozenset(
    {"json", "et", "pkl", "pickle", "p", "bin", "pt", "dump", "trace", "log", "txt", "gz", "fr"}
)
_PATTERNS: Final = (
    re.compile(r"rank[-_.= ]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"dump[-_.](\d{1,7})$", re.IGNORECASE),
    re.compile(r"(?<!\d)(\d{1,7})$"),
    re.compile(r"^(\d{1,7})(?!\d)"),
)


def rank_in(name: str) -> int | None:
    """Return the rank in a file name such as `nccl_trace_rank_3`, `_dump_3` or `rank3.json`; None without one."""
    stem = _without_extensions(name)
    for pattern in _PATTERNS:
        matches = pattern.findall(stem)
        if matches and int(matches[-1]) < MAX_RANKS:
            return int(matches[-1])
    return None


def _without_extensions(name: str) -> str:
    stem, dot, extension = name.rpartition(".")
    while dot and extension.lower() in _EXTENSIONS:
        name = stem
        stem, dot, extension = name.rpartition(".")
    return name


MAX_LINES: Final = 10
"""Upper bound on the lines for files with one kind of fault."""


@dataclass(frozen=True, slots=True)
class FoundDumps:
    """The dumps of one job at a user's paths.

    Attributes:
        dumps: Dumps of the job with the most ranks, one for each rank, ascending; empty if there is no dump.
        notes: A line for each file or group of files left out, with the reason.
        other_files: Files that are not dumps, such as text output of other tools.
        traces: Paths of profiler traces, which other commands read.
    """

    dumps: tuple[CondensedDump, ...]
    notes: tuple[str, ...]
    other_files: tuple[Path, ...]
    traces: tuple[str, ...] = ()


def read_dumps(
    paths: Sequence[Path], limits: ReadingLimits = DEFAULT_LIMITS, advance: Advance = unreported
) -> FoundDumps:
    """Read the dumps of one job, condensed.

    Args:
        paths: Folders, files and archives.
        limits: Bounds on unpacking.
        advance: Called for each file that may be a dump.
    """
    skipped = Skipped()
    traces: list[str] = []
    files = _without_traces(find_files(paths, skipped, limits), traces)
    read: list[_ReadFile[CondensedDump]] = []
    for file in read_each(partial(_read_condensed, max_bytes=limits.file_bytes), files):
        read.append(file)
        advance(1)
    problems = [problem for file in read for problem in file.problems]
    skipped.other_files += [file.other_file for file in read if file.other_file is not None]
    skipped.other_members += sum(file.is_not_dump and file.other_file is None for file in read)
    jobs = sort_into_jobs(_with_shared_members([file.dump for file in read if file.dump is not None]))
    notes = [*shortened(skipped.problems), *shortened(problems), *_notes_on_skipped(skipped), *_notes_on_traces(traces)]
    other_files = tuple(skipped.other_files)
    if not jobs:
        return FoundDumps((), tuple(notes), other_files, tuple(traces))
    notes += [*_notes_on_other_jobs(jobs[1:]), *_notes_on_replaced(jobs[0])]
    return FoundDumps(jobs[0].dumps, tuple(notes), other_files, tuple(traces))


def read_whole(paths: Sequence[Path], chosen: Iterable[CondensedDump]) -> Iterator[FlightDump]:
    """Read dumps again with all their entries, one at a time: the dumps of a large job take gigabytes.

    Args:
        paths: The folders, files and archives that contain them.
        chosen: The dumps.
    """
    wanted = {(condensed.dump.path, condensed.rank) for condensed in chosen}
    wanted_paths = {path for path, _ in wanted}
    for file in find_files(paths, Skipped()):
        if file.path not in wanted_paths:
            continue
        dump = _read(file).dump
        if dump is not None and (dump.path, dump.rank) in wanted:
            wanted.remove((dump.path, dump.rank))
            yield dump


def _without_traces(files: Iterable[FoundFile], traces: list[str]) -> Iterator[FoundFile]:
    """Yield the files that are not profiler traces. The paths of traces are added to `traces`."""
    for file in files:
        if file.is_trace:
            traces.append(file.path)
        else:
            yield file


def _notes_on_traces(traces: Sequence[str]) -> Iterator[str]:
    hint = "no state of a hang; `otel-torchdist analyze` reads"
    if len(traces) == 1:
        yield f"{traces[0]} is a profiler trace and holds {hint} it"
    elif traces:
        yield f"{len(traces):,} profiler traces, such as {traces[0]}, hold {hint} them"


def _with_shared_members(dumps: Sequence[CondensedDump]) -> list[CondensedDump]:
    """Return the dumps with interned member lists: comparing thousands of equal lists by value is expensive."""
    interned: dict[tuple[int, ...], tuple[int, ...]] = {}
    shared: list[CondensedDump] = []
    for condensed in dumps:
        groups = {
            name: replace(group, ranks=interned.setdefault(group.ranks, group.ranks))
            for name, group in condensed.dump.groups.items()
        }
        shared.append(replace(condensed, dump=replace(condensed.dump, groups=groups)))
    return shared


_Dump = TypeVar("_Dump")


@dataclass(frozen=True, slots=True)
class _ReadFile(Generic[_Dump]):
    """The contents of a file.

    Attributes:
        dump: The dump; None for another file, or if its rank is unknown.
        problems: A line for each fault.
        is_not_dump: Whether the file is intact but not a dump.
        other_file: Path of the file if `is_not_dump`; None for a member of an archive.
    """

    dump: _Dump | None
    problems: tuple[str, ...] = ()
    is_not_dump: bool = False
    other_file: Path | None = None


def _read_condensed(file: FoundFile, max_bytes: int) -> _ReadFile[CondensedDump]:
    with without_collecting_garbage():
        read = _read(file, max_bytes)
        dump = condense(read.dump) if read.dump is not None else None
        return _ReadFile(dump, read.problems, read.is_not_dump, read.other_file)


def _read(file: FoundFile, max_bytes: int = DEFAULT_LIMITS.file_bytes) -> _ReadFile[FlightDump]:
    rank = rank_in(file.name)
    content = b""
    try:
        content = file.read(max_bytes)
        if not content and rank is None:
            return _ReadFile(None, is_not_dump=True, other_file=file.file)  # such as a rank's empty standard output
        decoded = decode(content, rank if rank is not None else -1, file.path)
    except (DumpError, UnreadableError) as error:
        if isinstance(error, NotADumpError) and not content.startswith(PICKLE):
            return _ReadFile(None, is_not_dump=True, other_file=file.file)  # JSON of another tool
        return _ReadFile(None, (f"{file.path}: {error}",))
    except MemoryError:
        return _ReadFile(None, (f"{file.path}: {NO_MEMORY}",))
    problems = [_faults(file, decoded)] if decoded.bad_parts else []
    dump = decoded.dump
    if rank is None and decoded.rank is None:
        return _ReadFile(None, (*problems, f"{file.path}: neither its name nor its content states a rank"))
    # The content takes precedence over the name, since files may be renamed.
    dump = replace(dump, rank=decoded.rank) if decoded.rank is not None else dump
    return _ReadFile(dump, tuple(problems))


def _faults(file: FoundFile, decoded: DecodedDump) -> str:
    parts = "1 part is" if decoded.bad_parts == 1 else f"{decoded.bad_parts} parts are"
    return f"{file.path}: {parts} invalid and left out ({decoded.first_fault})"


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and a last line with the number of others."""
    if len(lines) <= MAX_LINES:
        return list(lines)
    return [*lines[:MAX_LINES], f"and {len(lines) - MAX_LINES} more files like these"]


def _notes_on_skipped(skipped: Skipped) -> Iterator[str]:
    if skipped.other_members:
        files = "1 other file" if skipped.other_members == 1 else f"{skipped.other_members:,} other files"
        yield f"{files} inside archives: unpack them to have them read"
    if skipped.tapes:
        yield "there are tapes too: `otel-torchdist diagnose --run-dir` reads them, from a folder"


def _notes_on_other_jobs(others: Sequence[FoundJob]) -> Iterator[str]:
    for job in others[:MAX_LINES]:
        ranks = name_ranks(sorted(dump.rank for dump in job.dumps))
        count = len(job.dumps) + len(job.replaced)
        first = job.dumps[0].dump.path
        files = "1 file is" if count == 1 else f"{count} files are"
        yield f"{files} from another job, of {ranks}, and left out here; the first is {first}"
    if len(others) > MAX_LINES:
        yield f"and files of {len(others) - MAX_LINES} more jobs"


def _notes_on_replaced(job: FoundJob) -> Iterator[str]:
    if not job.replaced:
        return
    ranks = sorted({dump.rank for dump in job.replaced})
    paths = ", ".join(dump.dump.path for dump in job.replaced[:3])
    more = f" and {len(job.replaced) - 3} more" if len(job.replaced) > 3 else ""
    yield f"{name_ranks(ranks)}: more than one dump; the newest is used; left out: {paths}{more}"
