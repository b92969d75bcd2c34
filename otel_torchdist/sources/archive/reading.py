"""Reads archives, one rank at a time. Files may be truncated, damaged or forged: intact segments are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.formats import OtherFormatError
from otel_torchdist.judge.world.resolved import ResolvedNames
from otel_torchdist.model.history import Activity, RankHistory
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.names import Name
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.model.text import readable
from otel_torchdist.sources.archive.columns import DamagedSegmentError
from otel_torchdist.sources.archive.decoding import Columns, decode
from otel_torchdist.sources.archive.files import SUFFIX, read_segment, segments_in
from otel_torchdist.sources.archive.format import MAGIC, format_of
from otel_torchdist.sources.archive.segment import Archived, SegmentLocation, SegmentOrigin
from otel_torchdist.system.files.others import read_part, reason
from otel_torchdist.system.progress import Advance, unreported
from otel_torchdist.tape.names.reader import Names

MAX_OPERATIONS: Final = 1_000_000
"""Upper bound on the operations of a rank's history, about a gigabyte. The newest are kept."""
_MAX_NOTES: Final = 8
_DEPTH: Final = 3
"""Levels of an archive: runs, nodes, files."""


@dataclass(frozen=True, slots=True)
class ArchivedRank:
    """The segments of one rank.

    Attributes:
        rank: Global rank.
        locations: Where the segments are stored, in the order of writing; at least one.
    """

    rank: int
    locations: tuple[SegmentLocation, ...]

    @property
    def operations(self) -> int:
        """Number of operations in all segments."""
        return sum(location.operations for location in self.locations)


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """A run in an archive.

    Attributes:
        ranks: Its ranks with segments, ascending; at least one.
    """

    run_id: int
    ranks: tuple[ArchivedRank, ...]

    @property
    def label(self) -> str:
        """First eight digits of the run's id."""
        return run_label(self.run_id)

    @property
    def begun_ns(self) -> int:
        """Creation time of its first tape, by the wall clock."""
        return min(rank.locations[0].begun_ns for rank in self.ranks)

    def origin(self) -> SegmentOrigin | None:
        """Return the origin stored in the first intact segment; None if no segment is intact."""
        for rank in self.ranks:
            for columns in segments_of(rank, []):
                return columns.origin
        return None


def is_archive(path: Path) -> bool:
    """Return whether a path is an archive, or a folder or file in an archive."""
    if path.is_dir():
        return next(_files_below(path), None) is not None
    try:
        return path.name.endswith(SUFFIX) or format_of(read_part(path, 0, len(MAGIC))) is not None
    except OSError:
        return False


def runs_in(paths: Iterable[Path]) -> tuple[list[ArchivedRun], list[str]]:
    """Find the runs in archives, or in parts of them.

    Returns:
        The runs, newest first, and a line for each failure to read.

    Raises:
        OtherFormatError: Nothing can be read, because another version has written the archive in another format.
    """
    locations_by_run: dict[int, dict[int, dict[int, list[SegmentLocation]]]] = {}
    notes: list[str] = []
    refused: dict[str, OtherFormatError] = {}
    files = {file: None for path in paths for file in _files_at(path)}
    for path in sorted(files, key=lambda file: file.name):
        try:
            for location in segments_in(path, notes):
                tapes = locations_by_run.setdefault(location.run_id, {}).setdefault(location.rank, {})
                tapes.setdefault(location.nonce, []).append(location)
        except OtherFormatError as error:
            refused.setdefault(error.refusal, error)
        except OSError as error:
            notes.append(f"{path}: {reason(error)}")
    if refused and not locations_by_run:
        raise next(iter(refused.values()))
    notes += map(str, refused.values())
    runs = [ArchivedRun(run_id, _ranks(tapes_by_rank)) for run_id, tapes_by_rank in locations_by_run.items()]
    return sorted(runs, key=lambda run: -run.begun_ns), [readable(note) for note in notes]


def _ranks(tapes_by_rank: dict[int, dict[int, list[SegmentLocation]]]) -> tuple[ArchivedRank, ...]:
    """Return the ranks of a run, with the segments of each rank's newest tape."""
    return tuple(
        ArchivedRank(rank, tuple(max(tapes.values(), key=lambda locations: locations[0].begun_ns)))
        for rank, tapes in sorted(tapes_by_rank.items())
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


def segments_of(rank: ArchivedRank, notes: list[str], advance: Advance = unreported) -> Iterator[Columns]:
    """Yield the segments of a rank in order, without duplicates. Unreadable segments get a line in `notes`."""
    yielded: set[tuple[int, int, int]] = set()
    skipped = 0
    for location in rank.locations:
        advance(location.operations)
        identity = location.first_unread, location.size, location.checksum
        if identity in yielded:
            continue
        try:
            columns = decode(read_segment(location))
        except (OSError, DamagedSegmentError) as error:
            skipped += 1
            if skipped <= _MAX_NOTES:
                fault = reason(error) if isinstance(error, OSError) else f"{error}: skipped"
                notes.append(readable(f"{location.path}: the segment at byte {location.offset:,}: {fault}"))
            continue
        yielded.add(identity)
        yield columns
    if skipped > _MAX_NOTES:
        notes.append(f"rank {rank.rank}: {skipped - _MAX_NOTES:,} more segments cannot be read")


def history_of(
    rank: ArchivedRank, notes: list[str], max_operations: int = MAX_OPERATIONS, advance: Advance = unreported
) -> RankHistory | None:
    """Read the archived calls of a rank.

    Args:
        rank: The rank.
        notes: Receives a line for each failure to read, and one if older operations are left out.
        max_operations: Upper bound on the operations read. The newest are kept.
        advance: Called with the number of operations of each segment.

    Returns:
        Its history; None if no segment can be read.
    """
    newest = _newest_segments(rank, max_operations)
    if len(newest) < len(rank.locations):
        older = rank.operations - sum(location.operations for location in newest)
        advance(older)
        notes.append(
            f"rank {rank.rank}: the {older:,} oldest archived operations are left out, to read at most "
            f"{max_operations:,} into memory: `otel-torchdist export --parquet` writes all"
        )
    records = _TapeRecords()
    for columns in segments_of(ArchivedRank(rank.rank, newest), notes, advance):
        records.add(columns, notes)
    return records.history(left_out=len(newest) < len(rank.locations))


def history_in(columns: Columns) -> RankHistory | None:
    """Return the records of one segment as a history; None if a row is impossible, as in a forged segment."""
    records = _TapeRecords()
    records.add(columns, [])
    return records.history(left_out=True)


def _newest_segments(rank: ArchivedRank, max_operations: int) -> tuple[SegmentLocation, ...]:
    total, first = 0, len(rank.locations)
    for location in reversed(rank.locations):
        total += location.operations
        if total > max_operations and first < len(rank.locations):
            break
        first -= 1
    return rank.locations[first:]


class _TapeRecords:
    """The records of a tape, gathered from its segments."""

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
        """Return the records as a history; None without any.

        Args:
            left_out: Whether segments were left out on purpose. Their operations do not count as lost.
        """
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
            # Operations of unreadable segments are lost, too.
            lost=moment.lost + (0 if left_out else max(last.archived - ended, 0)),
            clock=f"{origin.boot_id:032x}" if origin.boot_id else "",
            until_ns=moment.taken_ns,
            groups=tuple(group for group in groups if group is not None),
            steps=tuple(mark for _, mark in sorted(self._steps.items())),
            activities=tuple(activity for _, activity in sorted(self._activities.items())),
        )


def fresh_rows(segments: Iterable[Columns]) -> Iterator[tuple[Columns, list[bool], bool]]:
    """Yield each segment of a tape, whether each of its ended operations is new, and whether it is the last segment.

    An operation in an earlier segment is not new: an agent archives operations again if it cannot read the segments of
    another agent.
    """
    archived = Archived()
    pending: tuple[Columns, list[bool]] | None = None
    for columns in segments:
        if pending is not None:
            yield (*pending, False)
        pending = columns, [not archived.has(number) for number in columns.ended[0]]
        if columns.moment.first_unread > archived.first_unread:
            archived = Archived(columns.moment.first_unread, columns.open_numbers)
        else:
            archived = Archived(archived.first_unread, archived.open.difference(columns.ended[0]))
    if pending is not None:
        yield (*pending, True)
