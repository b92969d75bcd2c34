"""The result of polling a tape, and the position of its reader."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from otel_torchdist.model.history import Activity, Interval
from otel_torchdist.model.numerics import Numerics
from otel_torchdist.model.operations import Operation, StepMark


@dataclass(slots=True)
class Batch:
    """The result of one poll, in the order of the tape.

    Attributes:
        entered: Operations seen for the first time.
        ended: Operations whose end became known.
        steps: Steps that ended.
        activities_entered: Activities seen for the first time.
        activities_ended: Activities whose end became known.
        companions: Numbers of the records that are merged into an operation: splits and numerics.
        numerics: Numerics of operations seen for the first time, and again once their outputs are known.
        lost: Number of records that were overwritten, skipped, damaged or never committed, plus ends that were missed.
        refused: Number of lost records that are intact, but have an unknown kind or an impossible number.
        is_cut: Whether records were skipped, because the reader could not keep up.
    """

    entered: list[Operation] = field(default_factory=list[Operation])
    ended: list[Operation] = field(default_factory=list[Operation])
    steps: list[StepMark] = field(default_factory=list[StepMark])
    activities_entered: list[Activity] = field(default_factory=list[Activity])
    activities_ended: list[Activity] = field(default_factory=list[Activity])
    companions: list[int] = field(default_factory=list[int])
    numerics: list[Numerics] = field(default_factory=list[Numerics])
    lost: int = 0
    refused: int = 0
    is_cut: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the poll read nothing new."""
        records = (self.entered, self.ended, self.steps, self.activities_entered, self.activities_ended)
        return not any(records) and not self.companions and not self.numerics

    @property
    def numbers(self) -> list[int]:
        """Numbers of all records seen for the first time, ascending."""
        records = (*self.entered, *self.steps, *self.activities_entered)
        return sorted([*self.companions, *(record.number for record in records)])

    @property
    def last_number(self) -> int:
        """Highest number of a record seen for the first time; 0 without one."""
        newest = [records[-1].number for records in (self.entered, self.steps, self.activities_entered) if records]
        return max([*newest, *self.companions[-1:]], default=0)

    def add_entered(self, interval: Interval) -> None:
        """Add an operation or activity seen for the first time."""
        if isinstance(interval, Activity):
            self.activities_entered.append(interval)
        else:
            self.entered.append(interval)

    def add_ended(self, interval: Interval) -> None:
        """Add an operation or activity that has ended."""
        if isinstance(interval, Activity):
            self.activities_ended.append(interval)
        else:
            waited_ns, ended_ns = interval.wait_entered_ns, interval.completed_ns
            if waited_ns is not None and ended_ns is not None and waited_ns > ended_ns:
                # When the wait began, another thread had read the clock for the end, but had not recorded the end yet.
                interval = msgspec.structs.replace(interval, wait_entered_ns=ended_ns)
            self.ended.append(interval)


@dataclass(frozen=True, slots=True)
class TapeCursor:
    """A reader's position, from which another reader can continue.

    Attributes:
        next_number: Number of the first unread record.
        open: Operations in flight.
        lost: As `TapeReader.lost`.
        open_activities: Activities in progress.
    """

    next_number: int
    open: tuple[Operation, ...]
    lost: int
    open_activities: tuple[Activity, ...] = ()
