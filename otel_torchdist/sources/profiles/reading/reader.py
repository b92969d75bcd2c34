"""Reads the traces of a job from whatever paths a user names, and reports what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from otel_torchdist.model.naming import name_ranks
from otel_torchdist.sources.flight.reading.limits import NO_MEMORY, ReadingLimits, UnreadableError
from otel_torchdist.sources.flight.reading.parallel import read_each
from otel_torchdist.sources.flight.reading.reader import rank_in, shortened
from otel_torchdist.sources.flight.reading.sources import FoundFile, Skipped, find_files
from otel_torchdist.sources.profiles.profile import DecodedTrace, RankProfile, TraceKind
from otel_torchdist.sources.profiles.reading.chakra import decode_chakra
from otel_torchdist.sources.profiles.reading.document import (
    ABSENT,
    MAX_TRACE_BYTES,
    TraceError,
    open_document,
    unpacked,
)
from otel_torchdist.sources.profiles.reading.kineto import decode_profile
from otel_torchdist.sources.profiles.reading.trace_nodes import decode_execution_trace
from otel_torchdist.system.this_process.commands import without_collecting_garbage

LARGE_BYTES: Final = 64 << 20
_LIMITS: Final = ReadingLimits(file_bytes=MAX_TRACE_BYTES)


@dataclass(frozen=True, slots=True)
class FoundKinds:
    """What lies at some paths.

    Attributes:
        traces: Paths of files that look like traces of a profiler.
        dumps: Paths of files that look like dumps of the flight recorder.
        trace_bytes: Size of the traces, as they are.
    """

    traces: tuple[str, ...]
    dumps: tuple[str, ...]
    trace_bytes: int


def kinds_in(paths: Sequence[Path]) -> FoundKinds:
    """Look at the files in folders and archives, and at how each of them begins."""
    traces: list[str] = []
    dumps: list[str] = []
    size = 0
    for file in find_files(paths, Skipped(), _LIMITS):
        if file.is_trace:
            traces.append(file.path)
            size += file.size
        elif file.is_dump:
            dumps.append(file.path)
    return FoundKinds(tuple(traces), tuple(dumps), size)


@dataclass(frozen=True, slots=True)
class FoundProfiles:
    """What the paths hold.

    Attributes:
        profiles: Of one job, one for each rank, ascending; empty if there is no trace.
        notes: What was left out, and why; a line each.
    """

    profiles: tuple[RankProfile, ...]
    notes: tuple[str, ...]


def read_profiles(paths: Sequence[Path], size: int = 0) -> FoundProfiles:
    """Read the traces of one job.

    Args:
        paths: Folders, files and archives.
        size: Bytes of the traces, if that is known: large ones are read by several processes.
    """
    skipped = Skipped()
    files = (file for file in find_files(paths, skipped, _LIMITS) if file.is_trace)
    read = list(read_each(_read, files, alone=0, chunk=1) if size > LARGE_BYTES else read_each(_read, files))
    notes = [*shortened(skipped.problems), *shortened([problem for one in read for problem in one.problems])]
    profiles = [one.profile for one in read if one.profile is not None]
    chosen, left_out = _of_one_job(profiles)
    return FoundProfiles(chosen, (*notes, *left_out))


@dataclass(frozen=True, slots=True)
class _ReadFile:
    profile: RankProfile | None
    problems: tuple[str, ...] = ()


def _read(file: FoundFile) -> _ReadFile:
    with without_collecting_garbage():
        try:
            content, is_whole = unpacked(file.read_as_it_is(MAX_TRACE_BYTES))
            found, damage = _decoded(file, content)
        except (TraceError, UnreadableError) as error:
            return _ReadFile(None, (f"{file.path}: {error}",))
        except MemoryError:  # with a limit on this process or its container, a file within our limits is too large
            return _ReadFile(None, (f"{file.path}: {NO_MEMORY}",))
        problems = [f"{file.path}: {damage}"] if damage else []
        if not is_whole and not damage:
            problems.append(f"{file.path}: the end of the compressed file is missing")
        return _ReadFile(found.profile, (*problems, *_faults(file, found)))


def _decoded(file: FoundFile, content: bytes) -> tuple[DecodedTrace, str]:
    """Decode a trace of whatever kind; returns it, and what is wrong with the file, or ''."""
    rank = rank_in(file.name)
    if file.is_chakra:
        return decode_chakra(content, file.path, rank)
    document, damage = open_document(content)
    if document.traceEvents is not ABSENT:
        return decode_profile(document, file.name, file.path, rank), damage
    if document.nodes is not ABSENT:
        return decode_execution_trace(document, file.path, rank), damage
    raise TraceError("it holds neither events nor nodes")


def _faults(file: FoundFile, found: DecodedTrace) -> Iterator[str]:
    if found.bad:
        parts = "a part of it is" if found.bad == 1 else f"{found.bad:,} parts of it are"
        yield f"{file.path}: {parts} no good, and left out ({found.first_fault})"


def _of_one_job(profiles: Sequence[RankProfile]) -> tuple[tuple[RankProfile, ...], list[str]]:
    """Choose one trace for each rank of one job, and describe what is left out."""
    notes: list[str] = []
    kinds = {profile.kind for profile in profiles}
    if len(kinds) > 1:  # written together, as `profile(execution_trace_observer=...)` does; only one has times
        execution = [profile for profile in profiles if profile.kind is TraceKind.EXECUTION]
        profiles = [profile for profile in profiles if profile.kind is TraceKind.PROFILER]
        notes.append(
            f"{_traces(execution, 'execution trace')} left out, because there are traces of the profiler, which have "
            "times; name them alone to have them read"
        )
    sizes = Counter(profile.world_size for profile in {(one.rank, one.world_size): one for one in profiles}.values())
    if len(sizes) > 1:
        size, _ = max(sizes.items(), key=lambda item: (item[1], item[0]))
        others = [profile for profile in profiles if profile.world_size != size]
        profiles = [profile for profile in profiles if profile.world_size == size]
        notes.append(f"{_traces(others)} of jobs of another size left out, such as {others[0].path}")
    of_rank: dict[int, list[RankProfile]] = {}
    for profile in profiles:
        of_rank.setdefault(profile.rank, []).append(profile)
    chosen: list[RankProfile] = []
    replaced: list[RankProfile] = []
    for rank in sorted(of_rank):
        one, rest = _joined(of_rank[rank])
        chosen.append(one)
        replaced += rest
    if replaced:
        ranks = sorted({one.rank for one in replaced})
        notes.append(
            f"{name_ranks(ranks)}: traces of more than one recording, of which the newest is used; left out: "
            + ", ".join(one.path for one in replaced[:3])
            + (f" and {len(replaced) - 3} more" if len(replaced) > 3 else "")
        )
    return tuple(chosen), notes


def _traces(profiles: Sequence[RankProfile], what: str = "trace") -> str:
    return f"1 {what} is" if len(profiles) == 1 else f"{len(profiles)} {what}s are"


def _joined(profiles: Iterable[RankProfile]) -> tuple[RankProfile, list[RankProfile]]:
    """Join the traces of a rank's recording, which has one file for each cycle of a schedule.

    Returns:
        The newest recording, and traces of others.
    """
    newest_first = sorted(profiles, key=lambda one: (one.newest_ns, len(one.calls)), reverse=True)
    joined, rest = newest_first[0], list[RankProfile]()
    for one in newest_first[1:]:
        known = {step.number for step in joined.steps}
        # A file is also written where a schedule is cut short; it may hold nothing.
        is_part = one.process == joined.process and known.isdisjoint(step.number for step in one.steps)
        if one.calls and not (is_part and one.steps):
            rest.append(one)
            continue
        joined = replace(
            joined,
            groups=tuple(dict.fromkeys((*joined.groups, *one.groups))),
            steps=(*one.steps, *joined.steps) if one.calls else joined.steps,
            calls=(*one.calls, *joined.calls),
        )
    return joined, rest
