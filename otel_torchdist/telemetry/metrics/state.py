"""The counts of one rank, from which the next reader continues, and what is kept for each of its series."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from otel_torchdist.tape.records.numerics import Numerics
from otel_torchdist.tape.records.operations import StepMark
from otel_torchdist.telemetry.metrics.calls import CallSeries
from otel_torchdist.telemetry.metrics.checkpoints import NO_SAVES, CheckpointCounts, Saves
from otel_torchdist.telemetry.metrics.durations import DurationHistogram, TimedMessages
from otel_torchdist.telemetry.metrics.snapshots import GroupInfo, GroupSnapshot
from otel_torchdist.telemetry.metrics.totals import RankTotals


@dataclass(frozen=True, slots=True)
class SeriesState:
    """Counters of one group and operation, with timed operations by message size class."""

    group: str
    operation: str
    entered: int
    message_bytes: int
    sizes: tuple[tuple[str, TimedMessages], ...]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group and the progress of its collectives."""

    label: str
    info: GroupInfo
    aligned: bool
    started: int | None
    completed: int | None


@dataclass(frozen=True, slots=True)
class MetricsState:
    """Everything that `RankMetrics` counts.

    Attributes:
        series: Counters, by group and operation.
        groups: Groups with a series of their own.
        folded: Name ids of groups without one.
        steps: Durations of steps.
        last_step: The last step that ended.
        totals: Counts of its operations as a whole.
        communicating: Nanoseconds with an operation in flight, and the time up to which they have been counted.
        blocked: The same for blocked threads.
        checkpoints: Counts of checkpoints, by operation and stage.
        saves: When saves have ended well.
        calls: Durations of remote procedure calls.
    """

    series: tuple[SeriesState, ...]
    groups: tuple[GroupState, ...]
    folded: frozenset[int]
    steps: DurationHistogram
    last_step: StepMark | None
    totals: RankTotals
    communicating: tuple[int, int] = (0, 0)
    blocked: tuple[int, int] = (0, 0)
    checkpoints: tuple[CheckpointCounts, ...] = ()
    saves: Saves = NO_SAVES
    calls: tuple[tuple[CallSeries, DurationHistogram], ...] = ()


@dataclass(slots=True, eq=False)
class Series:
    """Counters of one group and operation, with timed operations by message size, and the newest statistics."""

    group: str
    operation: str
    entered: int = 0
    message_bytes: int = 0
    sizes: dict[str, TimedMessages] = field(default_factory=dict[str, TimedMessages])
    values: Numerics | None = None

    @property
    def timed(self) -> tuple[tuple[str, TimedMessages], ...]:
        """The current timed operations, as copies."""
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
        """The current state of the group."""
        return GroupSnapshot(self.label, self.info, self.started, self.completed)


class Target(NamedTuple):
    """Where an operation is counted; no progress if its sequence number is not comparable across ranks."""

    series: Series
    progress: GroupProgress | None
