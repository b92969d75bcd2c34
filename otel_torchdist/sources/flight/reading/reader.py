"""Reads the dumps of a job from whatever paths a user names, and reports what was left out and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

from otel_torchdist.model.naming import name_ranks
from otel_torchdist.sources.flight.dump import FlightDump
from otel_torchdist.sources.flight.history import CondensedDump, condense
from otel_torchdist.sources.flight.reading.decoding import PICKLE, DecodedDump, DumpError, NotADumpError, decode
from otel_torchdist.sources.flight.reading.jobs import FoundJob, sort_into_jobs
from otel_torchdist.sources.flight.reading.limits import NO_MEMORY, USUAL, ReadingLimits, UnreadableError
from otel_torchdist.sources.flight.reading.parallel import read_each
from otel_torchdist.sources.flight.reading.sources import FoundFile, Skipped, find_files
from otel_torchdist.system.this_process.commands import without_collecting_garbage
from otel_torchdist.tape.layout import MAX_RANKS

_ENDINGS: Final = frozenset(
    {"json", "et", "pkl", "pickle", "p", "bin", "pt", "dump", "trace", "log", "txt", "gz", "fr"}
)
_PATTERNS: Final = (
    re.compile(r"rank[-_.= ]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"dump[-_.](\d{1,7})$", re.IGNORECASE),
    re.compile(r"(?<!\d)(\d{1,7})$"),
    re.compile(r"^(\d{1,7})(?!\d)"),
)


def rank_in(name: str) -> int | None:
    """The rank that a file's name states, as in `nccl_trace_rank_3`, `_dump_3` or `rank3.json`; None for none."""
    stem = _without_endings(name)
    for pattern in _PATTERNS:
        found = pattern.findall(stem)
        if found and int(found[-1]) < MAX_RANKS:
            return int(found[-1])
    return None


def _without_endings(name: str) -> str:
    stem, dot, ending = name.rpartition(".")
    while dot and ending.lower() in _ENDINGS:
        name = stem
        stem, dot, ending = name.rpartition(".")
    return name


MAX_LINES: Final = 10
"""Files of one kind of fault that are reported one by one."""


@dataclass(frozen=True, slots=True)
class FoundDumps:
    """The dumps found in some paths.

    Attributes:
        dumps: Of the job with the most ranks, one for each rank, ascending; empty if there is no dump.
        notes: What was left out, and why; a line each.
        others: Files that are no dumps, and may be texts of other tools.
        traces: Traces of profilers, which other commands read.
    """

    dumps: tuple[CondensedDump, ...]
    notes: tuple[str, ...]
    others: tuple[Path, ...]
    traces: tuple[str, ...] = ()


def read_dumps(paths: Sequence[Path], limits: ReadingLimits = USUAL) -> FoundDumps:
    """Read the dumps of one job, keeping of each only what judging needs.

    Args:
        paths: Folders, files and archives.
        limits: Bounds on what is unpacked.
    """
    skipped = Skipped()
    traces: list[str] = []
    files = _without_traces(find_files(paths, skipped, limits), traces)
    read = list(read_each(partial(_read_condensed, most=limits.file_bytes), files))
    problems = [problem for one in read for problem in one.problems]
    skipped.others += [one.other for one in read if one.other is not None]
    skipped.others_inside += sum(one.is_other and one.other is None for one in read)
    jobs = sort_into_jobs(_with_shared_members([one.dump for one in read if one.dump is not None]))
    notes = [*shortened(skipped.problems), *shortened(problems), *_others(skipped), *_of_traces(traces)]
    others = tuple(skipped.others)
    if not jobs:
        return FoundDumps((), tuple(notes), others, tuple(traces))
    notes += [*_of_other_jobs(jobs[1:]), *_of_replaced(jobs[0])]
    return FoundDumps(jobs[0].dumps, tuple(notes), others, tuple(traces))


def read_whole(paths: Sequence[Path], chosen: Iterable[CondensedDump]) -> Iterator[FlightDump]:
    """Read dumps again with all their entries, one after the other: those of a large job take gigabytes.

    Args:
        paths: The folders, files and archives in which they were found.
        chosen: The dumps.
    """
    wanted = {(one.dump.path, one.rank) for one in chosen}
    named = {path for path, _ in wanted}
    for file in find_files(paths, Skipped()):
        if file.path not in named:
            continue
        dump = _read(file).dump
        if dump is not None and (dump.path, dump.rank) in wanted:
            wanted.remove((dump.path, dump.rank))
            yield dump


def _without_traces(files: Iterable[FoundFile], traces: list[str]) -> Iterator[FoundFile]:
    """Yield what is no trace of a profiler; the paths of those are collected."""
    for file in files:
        if file.is_trace:
            traces.append(file.path)
        else:
            yield file


def _of_traces(traces: Sequence[str]) -> Iterator[str]:
    read = "no state of a hang; `otel-torchdist analyze` reads"
    if len(traces) == 1:
        yield f"{traces[0]} is a trace of a profiler and holds {read} it"
    elif traces:
        yield f"{len(traces):,} traces of a profiler, such as {traces[0]}, hold {read} them"


def _with_shared_members(dumps: Sequence[CondensedDump]) -> list[CondensedDump]:
    """The same dumps, in which equal lists of members are one object: comparing thousands of them is expensive."""
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    found: list[CondensedDump] = []
    for one in dumps:
        groups = {
            name: replace(group, ranks=known.setdefault(group.ranks, group.ranks))
            for name, group in one.dump.groups.items()
        }
        found.append(replace(one, dump=replace(one.dump, groups=groups)))
    return found


_Dump = TypeVar("_Dump")


@dataclass(frozen=True, slots=True)
class _ReadFile(Generic[_Dump]):
    """The contents of a file.

    Attributes:
        dump: The dump; None if it is none, or of no known rank.
        problems: What was wrong with it.
        is_other: Whether it is sound and not a dump.
        other: The file, if it is such a one, and not inside an archive.
    """

    dump: _Dump | None
    problems: tuple[str, ...] = ()
    is_other: bool = False
    other: Path | None = None


def _read_condensed(file: FoundFile, most: int) -> _ReadFile[CondensedDump]:
    with without_collecting_garbage():
        read = _read(file, most)
        dump = condense(read.dump) if read.dump is not None else None
        return _ReadFile(dump, read.problems, read.is_other, read.other)


def _read(file: FoundFile, most: int = USUAL.file_bytes) -> _ReadFile[FlightDump]:
    rank = rank_in(file.name)
    content = b""
    try:
        content = file.read(most)
        if not content and rank is None:
            return _ReadFile(None, is_other=True, other=file.file)  # such as the standard output of a rank
        decoded = decode(content, rank if rank is not None else -1, file.path)
    except (DumpError, UnreadableError) as error:
        if isinstance(error, NotADumpError) and not content.startswith(PICKLE):
            return _ReadFile(None, is_other=True, other=file.file)  # JSON of another tool
        return _ReadFile(None, (f"{file.path}: {error}",))
    except MemoryError:
        return _ReadFile(None, (f"{file.path}: {NO_MEMORY}",))
    problems = [_faults(file, decoded)] if decoded.bad_parts else []
    dump = decoded.dump
    if rank is None and decoded.rank is None:
        return _ReadFile(None, (*problems, f"{file.path}: neither its name nor its content states a rank"))
    # What it says itself outranks its name, which anyone may have changed.
    dump = replace(dump, rank=decoded.rank) if decoded.rank is not None else dump
    return _ReadFile(dump, tuple(problems))


def _faults(file: FoundFile, decoded: DecodedDump) -> str:
    parts = "a part of it is" if decoded.bad_parts == 1 else f"{decoded.bad_parts} parts of it are"
    return f"{file.path}: {parts} no good, and left out ({decoded.first_fault})"


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first of these lines, and how many more there are."""
    if len(lines) <= MAX_LINES:
        return list(lines)
    return [*lines[:MAX_LINES], f"and {len(lines) - MAX_LINES} more files like these"]


def _others(skipped: Skipped) -> Iterator[str]:
    if skipped.others_inside:
        files = "1 other file" if skipped.others_inside == 1 else f"{skipped.others_inside:,} other files"
        yield f"{files} inside archives: unpack them to have them read"
    if skipped.tapes:
        yield "there are tapes too: `otel-torchdist diagnose --run-dir` reads them, from a folder"


def _of_other_jobs(others: Sequence[FoundJob]) -> Iterator[str]:
    for job in others[:MAX_LINES]:
        ranks = name_ranks(sorted(one.rank for one in job.dumps))
        count = len(job.dumps) + len(job.replaced)
        first = job.dumps[0].dump.path
        files = "1 file is" if count == 1 else f"{count} files are"
        yield f"{files} left by another job, of {ranks}, and left out here; the first is {first}"
    if len(others) > MAX_LINES:
        yield f"and files of {len(others) - MAX_LINES} more jobs"


def _of_replaced(job: FoundJob) -> Iterator[str]:
    if not job.replaced:
        return
    ranks = sorted({one.rank for one in job.replaced})
    paths = ", ".join(one.dump.path for one in job.replaced[:3])
    more = f" and {len(job.replaced) - 3} more" if len(job.replaced) > 3 else ""
    yield f"{name_ranks(ranks)}: more than one dump, of which the newest is used; left out: {paths}{more}"
