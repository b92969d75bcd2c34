"""Turns tapes into segments: a live tape segment by segment, and a whole tape at once."""

from __future__ import annotations

import time
from typing import Final

from otel_torchdist.model.history import Activity
from otel_torchdist.model.ids import lone_run_id
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.sources.archive.decoding import Columns, decode
from otel_torchdist.sources.archive.encoding import encode, parts_of
from otel_torchdist.sources.archive.segment import Archived, Moment, Segment, SegmentOrigin
from otel_torchdist.sources.archive.writer import ArchiveWriter
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.tape.reading.batch import Batch, TapeCursor
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus


def origin_of(tape: TapeReader, status: TapeStatus) -> SegmentOrigin:
    """Return the origin of a tape's segments. Without a run id, the tape gets an id of its own."""
    identity = tape.identity
    return SegmentOrigin(
        nonce=identity.nonce,
        run_id=status.run_id or lone_run_id(identity.nonce),
        rank=identity.rank,
        world_size=identity.world_size,
        host=identity.host,
        boot_id=identity.boot_id,
        begun_ns=identity.realtime_ns,
    )


def moment_of(tape: TapeReader, status: TapeStatus, cursor: TapeCursor, now_ns: int) -> Moment:
    """Return the state of a tape's rank.

    Args:
        tape: The tape.
        status: Its newest status.
        cursor: Its read position.
        now_ns: The monotonic clock of its node.
    """
    return Moment(
        taken_ns=now_ns if tape.is_alive() else status.heartbeat_ns,
        wall_offset_ns=status.realtime_ns - status.monotonic_ns,
        first_unread=cursor.next_number,
        lost=cursor.lost + status.records_dropped,
        state=status.state,
        failure=(tape.names.text(status.failure) or "") if status.failure else "",
    )


def read_to_end(tape: TapeReader) -> tuple[list[Operation], list[StepMark], list[Activity]]:
    """Read a tape to its current end, and return its ended operations, ends of steps, and ended activities.

    Raises:
        TapeError: The tape has become unreadable.
    """
    ended: list[Operation] = []
    steps: list[StepMark] = []
    activities: list[Activity] = []
    for batch in tape.poll_to_end():
        ended += batch.ended
        steps += batch.steps
        activities += batch.activities_ended
    return ended, steps, activities


def segments_of_tape(tape: TapeReader, now_ns: int) -> list[Columns]:
    """Read a tape that has not been polled yet to its current end, and return it as segments.

    Raises:
        TapeError: The tape has become unreadable.
    """
    ended, steps, activities = read_to_end(tape)
    tape.names.refresh()
    status, cursor = tape.status(), tape.cursor
    origin, moment = origin_of(tape, status), moment_of(tape, status, cursor, now_ns)
    groups = tape.names.group_ids()
    whole = Segment(origin, moment, 0, ended, cursor.open, steps, [*activities, *cursor.open_activities])
    return [decode(encode(part, tape.names, groups)) for part in parts_of(whole, Archived())]


MAX_SEGMENT_OPERATIONS: Final = 16_384
"""Number of operations after which a segment is written, about 10 MB as objects. Larger segments do not compress
better."""
MAX_INTERVAL_NS: Final = 30_000_000_000
"""Longest time between segments. If the node fails, the records since the last segment are lost with the tape, which
is in memory."""


class TapeArchive:
    """The archive of one tape."""

    def __init__(self, tape: TapeReader, writer: ArchiveWriter) -> None:
        """Archive a tape. Its segments go to `writer`."""
        self._tape = tape
        self._writer = writer
        self._names = NamesReader(tape.path.with_suffix(".names"), tape.owner)  # for the writer's thread
        self._status: TapeStatus | None = None
        self._closed_ns = time.monotonic_ns()
        self._written: tuple[int, frozenset[int], int] | None = None
        self._clear()

    def _clear(self) -> None:
        self._ended: list[Operation] = []
        self._steps: list[StepMark] = []
        self._activities: list[Activity] = []

    def resume(self, batch: Batch) -> None:
        """Add records that another reader has read. The writer skips records already archived."""
        self._add(batch)

    def consume(self, batch: Batch, status: TapeStatus, now_ns: int) -> None:
        """Add a batch. Close the segment if it has `MAX_SEGMENT_OPERATIONS`, or is `MAX_INTERVAL_NS` old."""
        self._add(batch)
        self._status = status
        is_due = status.run_id and now_ns - self._closed_ns >= MAX_INTERVAL_NS
        if is_due or len(self._ended) >= MAX_SEGMENT_OPERATIONS:
            self._close_segment(status, now_ns)

    def close(self) -> None:
        """Write the remaining records as a last segment."""
        if self._status is not None:
            self._close_segment(self._status, time.monotonic_ns())
        self._status = None

    def _add(self, batch: Batch) -> None:
        self._ended += batch.ended
        self._steps += batch.steps
        self._activities += batch.activities_ended

    def _close_segment(self, status: TapeStatus, now_ns: int) -> None:
        self._closed_ns = now_ns
        tape, cursor = self._tape, self._tape.cursor
        segment = Segment(
            origin=origin_of(tape, status),
            moment=moment_of(tape, status, cursor, now_ns),
            archived=0,
            ended=self._ended,
            open=cursor.open,
            steps=self._steps,
            activities=[*self._activities, *cursor.open_activities],
        )
        written = (cursor.next_number, segment.open_numbers, int(status.state))
        if self._ended or self._steps or self._activities or written != self._written:
            self._writer.put(segment, self._names)
            self._written = written
        self._clear()
