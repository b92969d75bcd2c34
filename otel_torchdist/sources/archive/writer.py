"""Writes segments into an archive, on its own thread: the reader never waits for a file system.

A file is opened and closed for each segment: the directory may vanish and come back, and a network file system
reports some errors only on close. Segments that cannot be written are encoded, kept in memory and retried. Beyond a
bound, the oldest segments are dropped and counted. `fsync` is never called: segments survive the end of any
process, but not a failure of the node before its kernel has written them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist import guard
from otel_torchdist.config import Config
from otel_torchdist.formats import OtherFormatError
from otel_torchdist.sources.archive.columns import DamagedSegmentError
from otel_torchdist.sources.archive.decoding import decode
from otel_torchdist.sources.archive.encoding import encode, parts_of
from otel_torchdist.sources.archive.files import files_in, folder_of, new_file, read_segment, segments_in
from otel_torchdist.sources.archive.segment import Archived, Segment, SegmentOrigin
from otel_torchdist.system.files.others import reason
from otel_torchdist.tape.names.reader import NamesReader

MAX_QUEUED_ROWS: Final = 131_072
"""Upper bound on queued rows, about 80 MB as objects, reached if the file system hangs."""
MAX_WAITING_BYTES: Final = 16 << 20
"""Upper bound on encoded segments that are not written yet."""
MAX_TAPES: Final = 4096
"""Upper bound on tapes and folders whose state the writer keeps."""
FILES: Final = 16
"""Number of files in a node's folder. If a segment does not fit in the folder, the oldest file is removed."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""Seconds until a failed write is retried. The pause doubles after each failure, up to the longest."""
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

_logger = logging.getLogger("otel_torchdist")


@dataclass(slots=True)
class _Tape:
    """The archived part of a tape, and the groups that the current file contains.

    Attributes:
        archived: The records archived so far.
        archived_elsewhere: The records archived by another process; None once this process has read later records.
        groups: Ids of the groups in `file`.
        file: The file of the last segment, written or not.
    """

    archived: Archived
    archived_elsewhere: Archived | None
    groups: set[int] = field(default_factory=set[int])
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class _EncodedSegments:
    """Encoded segments that are not written yet."""

    folder: Path
    content: bytes
    operations: int


class ArchiveWriter:
    """Writes the segments of any number of tapes.

    Attributes:
        dropped: Operations that could not be archived.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        max_queued: int = MAX_QUEUED_ROWS,
        write: Callable[[int, memoryview], int] = os.write,
    ) -> None:
        """Set up; the thread starts with the first segment.

        Args:
            directory: The archive; created with the first segment.
            max_bytes: Upper bound on the bytes of one run on this node.
            max_queued: Upper bound on the rows queued for the thread. Beyond it, the oldest segments are dropped.
            write: Replacement for `os.write`.
        """
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_queued = max_queued
        self._write_some = write
        self._changed = threading.Condition()
        self._queue: deque[tuple[Segment, NamesReader]] = deque()
        self._queued = 0
        self._dropped = 0
        self._is_closing = False
        # The thread owns the fields below.
        self._tapes: dict[int, _Tape] = {}
        self._files: dict[Path, Path] = {}
        self._full_folders: set[Path] = set()
        self._unwritten: deque[_EncodedSegments] = deque()
        self._unwritten_bytes = 0
        self._pause_s = 0.0
        self._thread = threading.Thread(target=self._run, name="otel-torchdist-archive", daemon=True)
        self._is_started = False

    @property
    def dropped(self) -> int:
        """Operations that could not be archived."""
        with self._changed:
            return self._dropped

    @property
    def queued(self) -> int:
        """Rows queued for the thread."""
        with self._changed:
            return self._queued

    def put(self, segment: Segment, names: NamesReader) -> None:
        """Queue a segment. If the queue is full, the oldest segments are dropped and counted.

        Args:
            segment: The segment, without names and with `archived` still 0.
            names: The dictionary of its tape, used only by the writer's thread.
        """
        with self._changed:
            if not self._is_started:
                with contextlib.suppress(
                    RuntimeError
                ):  # no thread starts while the process ends: `close` writes the queue
                    self._thread.start()
                    self._is_started = True
            self._queue.append((segment, names))
            self._queued += len(segment.ended)
            while self._queued > self._max_queued and len(self._queue) > 1:
                oldest, _ = self._queue.popleft()
                self._queued -= len(oldest.ended)
                self._dropped += len(oldest.ended)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Write the remaining segments and stop. Segments not written in time are counted as dropped."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._is_started:
            self._thread.join(timeout_s)
        else:
            self._run()

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            for segment, names in taken:
                with guard.guarded("the archive"):
                    self._encode(segment, names)
                    continue
                with self._changed:
                    self._dropped += len(segment.ended)
            self._write()

    def _next(self) -> list[tuple[Segment, NamesReader]] | None:
        """Wait for segments, or until the next attempt is due. Return None once the writer is closed."""
        with self._changed:
            if not self._queue and not self._is_closing:
                self._changed.wait(self._pause_s if self._unwritten else None)
            taken = list(self._queue)
            self._queue.clear()
            self._queued = 0
            if taken or not self._is_closing:
                return taken
            self._dropped += sum(segments.operations for segments in self._unwritten)
            return None

    def _encode(self, segment: Segment, names: NamesReader) -> None:
        origin = segment.origin
        folder = folder_of(self._directory, origin)
        tape = self._tapes.get(origin.nonce)
        if tape is None:
            if len(self._tapes) == MAX_TAPES:
                del self._tapes[next(iter(self._tapes))]  # if the tape continues, its archived part is read again
            archived = _archived_part(folder, origin)
            tape = self._tapes[origin.nonce] = _Tape(archived, archived)
        if tape.archived_elsewhere is not None:
            segment = _without(segment, tape.archived_elsewhere)
            if segment.moment.first_unread >= tape.archived_elsewhere.first_unread:
                tape.archived_elsewhere = None
            elif not segment.ended:
                return
            else:
                moment = dataclasses.replace(segment.moment, first_unread=tape.archived_elsewhere.first_unread)
                segment = dataclasses.replace(segment, moment=moment)
        file = self._file_of(folder)
        if tape.file != file:
            tape.file, tape.groups = file, set()
        names.refresh()
        groups = set(names.group_ids()) - tape.groups
        tape.groups |= groups
        before, tape.archived = (
            tape.archived,
            Archived(segment.moment.first_unread, segment.open_numbers, tape.archived.operations + len(segment.ended)),
        )
        *parts, last_part = parts_of(segment, before)
        content = b"".join([*(encode(part, names) for part in parts), encode(last_part, names, groups)])
        self._unwritten.append(_EncodedSegments(folder, content, len(segment.ended)))
        self._unwritten_bytes += len(content)
        while self._unwritten_bytes > MAX_WAITING_BYTES and len(self._unwritten) > 1:
            oldest = self._unwritten.popleft()
            self._unwritten_bytes -= len(oldest.content)
            with self._changed:
                self._dropped += oldest.operations

    def _file_of(self, folder: Path) -> Path:
        if len(self._files) == MAX_TAPES:
            self._files.clear()
        return self._files.get(folder) or self._files.setdefault(folder, new_file(folder))

    def _write(self) -> None:
        while self._unwritten:
            oldest = self._unwritten[0]
            try:
                self._append(oldest)
            except OSError as error:
                self._files.pop(oldest.folder, None)  # the file may end with part of a segment
                self._note_failure(error)
                return
            self._unwritten.popleft()
            self._unwritten_bytes -= len(oldest.content)
        if self._pause_s:
            _logger.info("%s: the archive is writable again", self._directory)
        self._pause_s = 0.0

    def _note_failure(self, error: OSError) -> None:
        if not self._pause_s:
            _logger.warning(
                "%s: the archive cannot be written (%s). Training and telemetry are not affected. Segments wait in "
                "memory; if they do not fit, the oldest are dropped and counted. Further attempts are not logged until "
                "one succeeds.",
                self._directory, reason(error),
            )  # fmt: skip
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)

    def _append(self, segments: _EncodedSegments) -> None:
        folder, content = segments.folder, segments.content
        folder.mkdir(parents=True, exist_ok=True)
        path = self._file_of(folder)
        self._make_room(folder, len(content), path)
        file = os.open(path, _FLAGS, 0o666)
        try:
            before = os.fstat(file).st_size
            try:
                self._write_all(file, content)
            except OSError:
                os.ftruncate(file, before)
                raise
        finally:
            os.close(file)
        if before + len(content) >= self._max_bytes // FILES:
            self._files.pop(folder, None)

    def _write_all(self, file: int, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[self._write_some(file, view) :]

    def _make_room(self, folder: Path, size: int, current: Path) -> None:
        """Remove this node's oldest files, of any process, until the segment fits."""
        files = files_in(folder)
        total = sum(taken for _, taken in files) + size
        for path, taken in files:
            if total <= self._max_bytes:
                return
            if path == current:
                continue
            path.unlink(missing_ok=True)
            total -= taken
            if folder not in self._full_folders:
                self._full_folders = {folder, *list(self._full_folders)[:MAX_TAPES]}
                _logger.info(
                    "%s: the archive has reached its limit of %d bytes: its oldest segments are removed from now on",
                    folder, self._max_bytes,
                )  # fmt: skip


def archive_of(config: Config) -> ArchiveWriter | None:
    """Return a writer if the settings name an archive, otherwise None."""
    return ArchiveWriter(config.archive, config.archive_bytes) if config.archive is not None else None


def _without(segment: Segment, archived: Archived) -> Segment:
    """Return a segment without the records already archived."""
    return dataclasses.replace(
        segment,
        ended=[operation for operation in segment.ended if not archived.has(operation.number)],
        steps=[mark for mark in segment.steps if not archived.has(mark.number)],
        activities=[each for each in segment.activities if each.is_open or not archived.has(each.number)],
    )


def _archived_part(folder: Path, origin: SegmentOrigin) -> Archived:
    """Return the part of a tape that another process has archived; an empty part if it cannot be read."""
    with contextlib.suppress(OSError):
        for path, _ in reversed(files_in(folder)):
            try:
                locations = [location for location in segments_in(path, []) if location.nonce == origin.nonce]
            except OtherFormatError:  # the records of another version are archived again, so this version reads them
                continue
            for location in reversed(locations):
                with contextlib.suppress(OSError, DamagedSegmentError):
                    last = decode(read_segment(location))
                    return Archived(last.moment.first_unread, last.open_numbers, last.archived)
    return Archived()
