"""Reads archives, one rank at a time. Files may be truncated, damaged or forged: what is sound is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.judge.world.resolved import ResolvedNames
from otel_torchdist.model.history import Activity, RankHistory
from otel_torchdist.model.names import Name
from otel_torchdist.model.naming import readable, run_label
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.sources.archive.columns import DamagedSegmentError
from otel_torchdist.sources.archive.decoding import Columns, decode
from otel_torchdist.sources.archive.format import MAGIC
from otel_torchdist.sources.archive.places import SUFFIX, read_segment, segments_in
from otel_torchdist.sources.archive.segment import Archived, SegmentOrigin, SegmentPlace
from otel_torchdist.system.files.others import read_part, reason
from otel_torchdist.tape.names.reader import Names

MOST_OPERATIONS: Final = 1_000_000
"""Operations of a rank in a history, the newest: about a gigabyte."""
_MAX_NOTES: Final = 8
_DEPTH: Final = 3
"""An archive holds folders of runs, these folders of nodes, and these files."""


@dataclass(frozen=True, slots=True)
class ArchivedRank:
    """The segments of one rank.

    Attributes:
        rank: Global rank.
        places: Where they are, in the order in which they were written; at least one.
    """

    rank: int
    places: tuple[SegmentPlace, ...]


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """A run in an archive.

    Attributes:
        run_id: Its id.
        ranks: Those of its ranks that have segments, ascending; at least one.
    """

    run_id: int
    ranks: tuple[ArchivedRank, ...]

    @property
    def label(self) -> str:
        """The first eight digits of its id."""
        return run_label(self.run_id)

    @property
    def begun_ns(self) -> int:
        """When its first tape was created, by the wall clock."""
        return min(rank.places[0].begun_ns for rank in self.ranks)

    def origin(self) -> SegmentOrigin | None:
        """Return what a sound segment says of its run, such as the size of the world; None if there is none."""
        for rank in self.ranks:
            for columns in segments_of(rank, []):
                return columns.origin
        return None


def is_archive(path: Path) -> bool:
    """Whether a path is an archive, a folder in one, or a file of one."""
    if path.is_dir():
        return next(_files_below(path), None) is not None
    try:
        return path.name.endswith(SUFFIX) or read_part(path, 0, len(MAGIC)) == MAGIC
    except OSError:
        return False


def runs_in(paths: Iterable[Path]) -> tuple[list[ArchivedRun], list[str]]:
    """Find the runs in archives, or in parts of them.

    Returns:
        The runs, the one that started last first, and what could not be read, in a line each.
    """
    found: dict[int, dict[int, dict[int, list[SegmentPlace]]]] = {}
    notes: list[str] = []
    files = {file: None for path in paths for file in _files_at(path)}
    for path in sorted(files, key=lambda file: file.name):
        try:
            for place in segments_in(path, notes):
                found.setdefault(place.run_id, {}).setdefault(place.rank, {}).setdefault(place.nonce, []).append(place)
        except OSError as error:
            notes.append(f"{path}: {reason(error)}")
    shown = [readable(note) for note in notes]
    runs = [ArchivedRun(run_id, _ranks(ranks)) for run_id, ranks in found.items()]
    return sorted(runs, key=lambda run: -run.begun_ns), shown


def _ranks(found: dict[int, dict[int, list[SegmentPlace]]]) -> tuple[ArchivedRank, ...]:
    """Return the ranks of a run, each with the segments of the newest of its tapes."""
    return tuple(
        ArchivedRank(rank, tuple(max(tapes.values(), key=lambda places: places[0].begun_ns)))
        for rank, tapes in sorted(found.items())
    )


def _files_at(path: Path) -> Iterable[Path]:
    return _files_below(path) if path.is_dir() else [path]


def _files_below(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(SUFFIX):
            yield Path(entry)
        elif depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from _files_below(Path(entry), depth - 1)


def segments_of(rank: ArchivedRank, notes: list[str]) -> Iterator[Columns]:
    """Yield the segments of a rank in their order, those of a copy once; what cannot be read is noted in a line."""
    seen: set[tuple[int, int, int]] = set()
    skipped = 0
    for place in rank.places:
        identity = place.through, place.size, place.checksum
        if identity in seen:
            continue
        try:
            columns = decode(read_segment(place))
        except (OSError, DamagedSegmentError) as error:
            skipped += 1
            if skipped <= _MAX_NOTES:
                why = reason(error) if isinstance(error, OSError) else f"{error}: skipped"
                notes.append(readable(f"{place.path}: the segment at byte {place.offset:,}: {why}"))
            continue
        seen.add(identity)
        yield columns
    if skipped > _MAX_NOTES:
        notes.append(f"rank {rank.rank}: {skipped - _MAX_NOTES:,} more segments cannot be read")


def history_of(rank: ArchivedRank, notes: list[str], most: int = MOST_OPERATIONS) -> RankHistory | None:
    """Read the archived calls of a rank.

    Args:
        rank: The rank.
        notes: Gets what could not be read, in a line each.
        most: How many operations are read at most, from the newest on; a line is added if there are more.

    Returns:
        Its history; None if no segment can be read.
    """
    newest = _newest(rank, most)
    if len(newest) < len(rank.places):
        older = sum(place.operations for place in rank.places) - sum(place.operations for place in newest)
        notes.append(
            f"rank {rank.rank}: the {older:,} oldest of its archived operations are left out, because the newest "
            f"{most:,} fill the memory: `otel-torchdist export --parquet` writes all"
        )
    collected = _Collected()
    for columns in segments_of(ArchivedRank(rank.rank, newest), notes):
        collected.add(columns, notes)
    return collected.history(left_out=len(newest) < len(rank.places))


def history_in(columns: Columns) -> RankHistory | None:
    """Return what one segment holds, as a history; None if a row is not one that a tape has."""
    collected = _Collected()
    collected.add(columns, [])
    return collected.history(left_out=True)


def _newest(rank: ArchivedRank, most: int) -> tuple[SegmentPlace, ...]:
    total, first = 0, len(rank.places)
    for place in reversed(rank.places):
        total += place.operations
        if total > most and first < len(rank.places):
            break
        first -= 1
    return rank.places[first:]


class _Collected:
    """The records that the segments of a tape hold together."""

    def __init__(self) -> None:
        self._operations: dict[int, Operation] = {}
        self._steps: dict[int, StepMark] = {}
        self._activities: dict[int, Activity] = {}
        self._names: dict[int, Name] = {}
        self._open: Sequence[Operation] = ()
        self._last: Columns | None = None

    def add(self, columns: Columns, notes: list[str]) -> None:
        try:
            segment = columns.segment()
        except DamagedSegmentError as error:
            notes.append(f"rank {columns.origin.rank}: a segment is skipped: {error}")
            return
        self._operations.update((operation.number, operation) for operation in segment.ended)
        self._steps.update((mark.number, mark) for mark in segment.steps)
        self._activities.update((activity.number, activity) for activity in segment.activities)
        self._names.update(segment.names)
        self._open = segment.open
        self._last = columns

    def history(self, left_out: bool) -> RankHistory | None:
        last = self._last
        if last is None:
            return None
        ended = len(self._operations)
        for operation in self._open:
            self._operations.setdefault(operation.number, operation)
        origin, moment = last.origin, last.moment
        names = Names(self._names)
        resolved = ResolvedNames(names, origin.rank)
        groups = map(resolved.group, names.group_ids())
        return RankHistory(
            rank=origin.rank,
            world_size=origin.world_size,
            host=origin.host,
            wall_offset_ns=moment.wall_offset_ns,
            operations=tuple(resolved.operation(operation) for _, operation in sorted(self._operations.items())),
            lost=moment.lost + (0 if left_out else max(last.archived - ended, 0)),
            clock=f"{origin.boot_id:032x}" if origin.boot_id else "",
            until_ns=moment.taken_ns,
            groups=tuple(group for group in groups if group is not None),
            steps=tuple(mark for _, mark in sorted(self._steps.items())),
            activities=tuple(activity for _, activity in sorted(self._activities.items())),
        )


def fresh_rows(segments: Iterable[Columns]) -> Iterator[tuple[Columns, list[bool], bool]]:
    """Yield segments of a tape, each with which of its ended operations no earlier one had, and whether it is the last.

    An agent that could not see what another one had archived has archived some of it again.
    """
    before = Archived()
    held: tuple[Columns, list[bool]] | None = None
    for columns in segments:
        if held is not None:
            yield (*held, False)
        held = columns, [not before.has(number) for number in columns.ended[0]]
        if columns.moment.through > before.through:
            before = Archived(columns.moment.through, columns.open_numbers)
        else:
            before = Archived(before.through, before.open.difference(columns.ended[0]))
    if held is not None:
        yield (*held, True)
