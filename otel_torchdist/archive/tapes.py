"""Tapes in the form of segments, so that what reads archives reads them too."""

from __future__ import annotations

from otel_torchdist.archive.model import Archived, Moment, Segment, SegmentOrigin
from otel_torchdist.archive.parts import parts_of
from otel_torchdist.archive.segments import Columns, decode, encode
from otel_torchdist.model.activities import Activity
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.naming import lone_run_id
from otel_torchdist.tape.reading.batch import TapeCursor
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus


def origin_of(tape: TapeReader, status: TapeStatus) -> SegmentOrigin:
    """Return what a tape's segments say of it; a run without an id gets one that no other run has."""
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
        cursor: How far it has been read.
        now_ns: The monotonic clock of its node.
    """
    return Moment(
        taken_ns=now_ns if tape.is_alive() else status.heartbeat_ns,
        wall_offset_ns=status.realtime_ns - status.monotonic_ns,
        through=cursor.next_number,
        lost=cursor.lost + status.records_dropped,
        state=status.state,
        failure=(tape.names.text(status.failure) or "") if status.failure else "",
    )


def rest_of(tape: TapeReader) -> tuple[list[Operation], list[StepMark], list[Activity]]:
    """Read a tape to where it ends now; returns what has ended.

    Raises:
        TapeError: It cannot be read any more.
    """
    ended: list[Operation] = []
    steps: list[StepMark] = []
    activities: list[Activity] = []
    for batch in tape.rest():
        ended += batch.ended
        steps += batch.steps
        activities += batch.activities_ended
    return ended, steps, activities


def segments_of_tape(tape: TapeReader, now_ns: int) -> list[Columns]:
    """Read a tape that was not polled before, to where it ends now.

    Raises:
        TapeError: It cannot be read any more.
    """
    ended, steps, activities = rest_of(tape)
    tape.names.refresh()
    status, cursor = tape.status(), tape.cursor
    origin, moment = origin_of(tape, status), moment_of(tape, status, cursor, now_ns)
    groups = tape.names.group_ids()
    whole = Segment(origin, moment, 0, ended, cursor.open, steps, [*activities, *cursor.open_activities])
    return [decode(encode(part, tape.names, groups)) for part in parts_of(whole, Archived())]
