"""A segment of an archive: some of a tape's records, with the names that they refer to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from otel_torchdist.model.history import Activity
from otel_torchdist.model.names import Name
from otel_torchdist.model.operations import Operation, StepMark


@dataclass(frozen=True, slots=True)
class SegmentOrigin:
    """The tape that a segment's records come from.

    Attributes:
        nonce: Nonce of the tape.
        run_id: Id of the run, 128 bits.
        rank: Global rank.
        boot_id: The kernel's boot id, 128 bits. It identifies the clock of all times.
        begun_ns: Creation time of the tape, by the wall clock.
    """

    nonce: int
    run_id: int
    rank: int
    world_size: int
    host: str
    boot_id: int
    begun_ns: int


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of a rank when a segment was closed.

    Attributes:
        taken_ns: Monotonic time when the segment was closed; of the last heartbeat if the process was dead.
        wall_offset_ns: Add it to the times of records for nanoseconds since the epoch.
        first_unread: Number of the first unread record. All records below it that had ended are archived.
        lost: Records overwritten or damaged before they could be read.
        state: A `TapeState`.
        failure: Type of the exception that ended the rank, or ''.
    """

    taken_ns: int
    wall_offset_ns: int
    first_unread: int
    lost: int
    state: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment.

    Attributes:
        archived: Operations of this tape archived so far, including this segment.
        ended: Operations that ended since the previous segment, by ascending number.
        open: Operations in flight when the segment was closed.
        steps: Ends of steps since the previous segment.
        activities: Activities that ended since the previous segment, and open activities.
        names: Groups, signatures, call sites and texts that the records refer to, by id.
    """

    origin: SegmentOrigin
    moment: Moment
    archived: int
    ended: Sequence[Operation]
    open: Sequence[Operation] = ()
    steps: Sequence[StepMark] = ()
    activities: Sequence[Activity] = ()
    names: Mapping[int, Name] = field(default_factory=dict[int, Name])

    @property
    def open_numbers(self) -> frozenset[int]:
        """Numbers of operations and activities still in flight."""
        activities = (activity.number for activity in self.activities if activity.is_open)
        return frozenset([*(operation.number for operation in self.open), *activities])


@dataclass(frozen=True, slots=True)
class Archived:
    """The archived part of a tape.

    Attributes:
        first_unread: As in `Moment`.
        open: Numbers below `first_unread` that are not archived, because they were in flight.
        operations: Number of archived operations.
    """

    first_unread: int = 0
    open: frozenset[int] = frozenset()
    operations: int = 0

    def has(self, number: int) -> bool:
        """Return whether a record that has ended is archived."""
        return number < self.first_unread and number not in self.open


@dataclass(frozen=True, slots=True)
class SegmentLocation:
    """The location of a segment in a file, and fields of its head. Fields not listed are as in `SegmentOrigin`.

    Attributes:
        offset: Offset of its head.
        size: Bytes of the body, which follows the head.
        operations: Number of ended operations in it.
        first_unread: As in `Moment`.
        checksum: CRC-32 of the body. Segments with equal checksums are copies.
    """

    path: Path
    offset: int
    size: int
    nonce: int
    run_id: int
    rank: int
    operations: int
    first_unread: int
    begun_ns: int
    checksum: int
