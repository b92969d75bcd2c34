"""What has been counted of one rank, for the next reader to go on from, and what is kept for each of its series."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from otel_torchdist.tape.records import StepMark
from otel_torchdist.telemetry.metrics.durations import DurationHistogram, TimedMessages
from otel_torchdist.telemetry.metrics.snapshots import GroupInfo, GroupSnapshot


@dataclass(frozen=True, slots=True)
class SeriesState:
    """Counters of one group and operation; what is timed, by class of message size."""

    group: str
    operation: str
    entered: int
    message_bytes: int
    sizes: tuple[tuple[str, TimedMessages], ...]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group and how far its collectives have come."""

    label: str
    info: GroupInfo
    aligned: bool
    started: int | None
    completed: int | None


@dataclass(frozen=True, slots=True)
class MetricsState:
    """All that `RankMetrics` counts.

    Attributes:
        series: By group and operation.
        groups: Those with a series of their own.
        folded: Name ids of groups without one.
        steps: Durations of steps.
        last_step: The step that ended last.
        untracked: Operations that nobody could follow on their device.
        communicating: Nanoseconds with an operation in flight, and up to when they have been counted.
        blocked: The same for threads that were blocked.
    """

    series: tuple[SeriesState, ...]
    groups: tuple[GroupState, ...]
    folded: frozenset[int]
    steps: DurationHistogram
    last_step: StepMark | None
    untracked: int
    communicating: tuple[int, int] = (0, 0)
    blocked: tuple[int, int] = (0, 0)


@dataclass(slots=True, eq=False)
class Series:
    """Counters of one group and operation; what is timed, by size of message."""

    group: str
    operation: str
    entered: int = 0
    message_bytes: int = 0
    sizes: dict[str, TimedMessages] = field(default_factory=dict[str, TimedMessages])

    @property
    def timed(self) -> tuple[tuple[str, TimedMessages], ...]:
        """What is timed, as it is now."""
        return tuple((size, timed.copy()) for size, timed in self.sizes.items())


@dataclass(slots=True, eq=False)
class GroupProgress:
    """A group's label and the progress of its collectives."""

    label: str
    info: GroupInfo
    aligned: bool
    started: int | None = None
    completed: int | None = None

    @property
    def snapshot(self) -> GroupSnapshot:
        """The group as it is now."""
        return GroupSnapshot(self.label, self.info, self.started, self.completed)


class Target(NamedTuple):
    """Where an operation is counted; no progress where its sequence says nothing across ranks."""

    series: Series
    progress: GroupProgress | None
