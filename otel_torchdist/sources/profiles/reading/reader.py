"""Reads the traces of a job from a user's paths, and reports the files left out, with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from otel_torchdist.model.text import name_ranks
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
from otel_torchdist.system.progress import Advance, unreported
from otel_torchdist.system.this_process.commands import without_collecting_garbage

LARGE_BYTES: Final = 64 << 20
_LIMITS: Final = ReadingLimits(file_bytes=MAX_TRACE_BYTES)


@dataclass(frozen=True, slots=True)
class FoundKinds:
    """The kinds of files at some paths, by their first bytes.

    Attributes:
        traces: Paths of files that look like profiler traces.
        dumps: Paths of files that look like flight recorder dumps.
        trace_bytes: Stored size of the traces in bytes, compressed or not.
    """

    traces: tuple[str, ...]
    dumps: tuple[str, ...]
    trace_bytes: int


def kinds_in(paths: Sequence[Path]) -> FoundKinds:
    """Classify the files in folders and archives by their first bytes."""
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
    """The traces found at some paths.

    Attributes:
        profiles: Traces of one job, one for each rank, ascending; empty if there is no trace.
        notes: A line for each file or group of files left out, with the reason.
    """

    profiles: tuple[RankProfile, ...]
    notes: tuple[str, ...]


def read_profiles(paths: Sequence[Path], size: int = 0, advance: Advance = unreported) -> FoundProfiles:
    """Read the traces of one job.

    Args:
        paths: Folders, files and archives.
        size: Bytes of the traces, or 0 if unknown. Several processes read large traces.
        advance: Called for each trace.
    """
    skipped = Skipped()
    files = (file for file in find_files(paths, skipped, _LIMITS) if file.is_trace)
    read: list[_ReadFile] = []
    for file in read_each(_read, files, unpooled=0, chunk=1) if size > LARGE_BYTES else read_each(_read, files):
        read.append(file)
        advance(1)
    notes = [*shortened(skipped.problems), *shortened([problem for file in read for problem in file.problems])]
    profiles = [file.profile for file in read if file.profile is not None]
    chosen, left_out = _choose_job(profiles)
    return FoundProfiles(chosen, (*notes, *left_out))


@dataclass(frozen=True, slots=True)
class _ReadFile:
    profile: RankProfile | None
    problems: tuple[str, ...] = ()


def _read(file: FoundFile) -> _ReadFile:
    with without_collecting_garbage():
        try:
            content, is_whole = unpacked(file.read_stored(MAX_TRACE_BYTES))
            trace, damage = _decoded(file, content)
        except (TraceError, UnreadableError) as error:
            return _ReadFile(None, (f"{file.path}: {error}",))
        except MemoryError:  # a process or container may have less memory than our limits assume
            return _ReadFile(None, (f"{file.path}: {NO_MEMORY}",))
        problems = [f"{file.path}: {damage}"] if damage else []
        if not is_whole and not damage:
            problems.append(f"{file.path}: the end of the compressed file is missing")
        return _ReadFile(trace.profile, (*problems, *_faults(file, trace)))


def _decoded(file: FoundFile, content: bytes) -> tuple[DecodedTrace, str]:
    """Decode a trace of any kind. Return it, and the damage of the file, or ''."""
    rank = rank_in(file.name)
    if file.is_chakra:
        return decode_chakra(content, file.path, rank)
    document, damage = open_document(content)
    if document.traceEvents is not ABSENT:
        return decode_profile(document, file.name, file.path, rank), damage
    if document.nodes is not ABSENT:
        return decode_execution_trace(document, file.path, rank), damage
    raise TraceError("it holds neither events nor nodes")


def _faults(file: FoundFile, trace: DecodedTrace) -> Iterator[str]:
    if trace.bad_parts:
        parts = "1 part is" if trace.bad_parts == 1 else f"{trace.bad_parts:,} parts are"
        yield f"{file.path}: {parts} invalid and left out ({trace.first_fault})"


def _choose_job(profiles: Sequence[RankProfile]) -> tuple[tuple[RankProfile, ...], list[str]]:
    """Choose one trace for each rank of one job, and describe the traces left out."""
    notes: list[str] = []
    kinds = {profile.kind for profile in profiles}
    if len(kinds) > 1:  # `profile(execution_trace_observer=...)` writes both, but only profiler traces have times
        execution = [profile for profile in profiles if profile.kind is TraceKind.EXECUTION]
        profiles = [profile for profile in profiles if profile.kind is TraceKind.PROFILER]
        notes.append(
            f"{_traces(execution, 'execution trace')} left out, because profiler traces, which have times, are given "
            "too; to analyze execution traces, name only these"
        )
    sizes = Counter(size for _, size in {(profile.rank, profile.world_size) for profile in profiles})
    if len(sizes) > 1:
        size, _ = max(sizes.items(), key=lambda item: (item[1], item[0]))
        others = [profile for profile in profiles if profile.world_size != size]
        profiles = [profile for profile in profiles if profile.world_size == size]
        notes.append(f"{_traces(others)} from jobs of another size and left out, such as {others[0].path}")
    by_rank: dict[int, list[RankProfile]] = {}
    for profile in profiles:
        by_rank.setdefault(profile.rank, []).append(profile)
    chosen: list[RankProfile] = []
    replaced: list[RankProfile] = []
    for rank in sorted(by_rank):
        joined, other_recordings = _joined(by_rank[rank])
        chosen.append(joined)
        replaced += other_recordings
    if replaced:
        ranks = sorted({profile.rank for profile in replaced})
        notes.append(
            f"{name_ranks(ranks)}: traces of more than one recording; the newest is used; left out: "
            + ", ".join(profile.path for profile in replaced[:3])
            + (f" and {len(replaced) - 3} more" if len(replaced) > 3 else "")
        )
    return tuple(chosen), notes


def _traces(profiles: Sequence[RankProfile], noun: str = "trace") -> str:
    return f"1 {noun} is" if len(profiles) == 1 else f"{len(profiles)} {noun}s are"


def _joined(profiles: Iterable[RankProfile]) -> tuple[RankProfile, list[RankProfile]]:
    """Join the traces of a rank's recording, which has one file for each cycle of a schedule.

    Returns:
        The newest recording, and the traces of other recordings.
    """
    newest_first = sorted(profiles, key=lambda profile: (profile.newest_ns, len(profile.calls)), reverse=True)
    joined, other_recordings = newest_first[0], list[RankProfile]()
    for older in newest_first[1:]:
        steps = {step.number for step in joined.steps}
        # A schedule that is cut short also writes a file, which may be empty.
        is_same_recording = older.process == joined.process and steps.isdisjoint(step.number for step in older.steps)
        if older.calls and not (is_same_recording and older.steps):
            other_recordings.append(older)
            continue
        joined = replace(
            joined,
            groups=tuple(dict.fromkeys((*joined.groups, *older.groups))),
            steps=(*older.steps, *joined.steps) if older.calls else joined.steps,
            calls=(*older.calls, *joined.calls),
        )
    return joined, other_recordings
