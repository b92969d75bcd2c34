"""A segment of an archive: part of the records of one tape, with the names that they refer to."""

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
        run_id: The run, 128 bits.
        rank: Global rank.
        world_size: Ranks of the run.
        host: Host name.
        boot_id: 128 bits of the kernel's boot id: the clock of all times.
        begun_ns: When the tape was created, by the wall clock.
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
        taken_ns: Until when the rank was seen: now if its process was alive, else its last heartbeat.
        wall_offset_ns: Add it to the times of records for nanoseconds since the epoch.
        through: Number of the first record that had not been read; what was read before and had ended is archived.
        lost: Records that were overwritten or damaged before they could be read.
        state: The rank's own state; see `TapeState`.
        failure: Type of the exception that ended it, or ''.
    """

    taken_ns: int
    wall_offset_ns: int
    through: int
    lost: int
    state: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment.

    Attributes:
        origin: The tape that it comes from.
        moment: The state of its rank when it was closed.
        archived: Operations of this tape that had been archived by then, with those of this segment.
        ended: Operations that ended since the segment before, by ascending number.
        open: Operations that had not ended when it was closed.
        steps: Ends of steps since the segment before.
        activities: Activities that ended since the segment before, and those that had not.
        names: Groups, signatures, call sites and texts by their ids, as far as the records refer to them.
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
        """Numbers of what had not ended."""
        activities = (activity.number for activity in self.activities if activity.is_open)
        return frozenset([*(operation.number for operation in self.open), *activities])


@dataclass(frozen=True, slots=True)
class Archived:
    """The records of a tape that are archived.

    Attributes:
        through: As in `Moment`.
        open: Numbers below it that are not, because they had not ended.
        operations: How many operations are.
    """

    through: int = 0
    open: frozenset[int] = frozenset()
    operations: int = 0

    def has(self, number: int) -> bool:
        """Whether a record that has ended is archived."""
        return number < self.through and number not in self.open


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """The place of a segment in a file, with the contents of its head.

    Attributes:
        path: The file.
        offset: Where its head begins.
        size: Bytes of the body behind the head.
        nonce: As in `SegmentOrigin`.
        run_id: As in `SegmentOrigin`.
        rank: As in `SegmentOrigin`.
        operations: How many operations ended in it.
        through: As in `Moment`.
        begun_ns: As in `SegmentOrigin`.
        checksum: Of the body: equal segments are copies.
    """

    path: Path
    offset: int
    size: int
    nonce: int
    run_id: int
    rank: int
    operations: int
    through: int
    begun_ns: int
    checksum: int
