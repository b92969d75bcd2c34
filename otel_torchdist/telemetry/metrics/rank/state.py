"""The counts of one rank, from which the next reader continues."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.model.operations import StepMark
from otel_torchdist.telemetry.metrics.checkpoints import NO_SAVES, CheckpointCounts, Saves
from otel_torchdist.telemetry.metrics.durations import DurationHistogram, TimedMessages
from otel_torchdist.telemetry.metrics.rank.calls import CallSeries
from otel_torchdist.telemetry.metrics.snapshots import GroupInfo
from otel_torchdist.telemetry.metrics.totals import RankCounts


@dataclass(frozen=True, slots=True)
class SeriesState:
    """Counters of one group and operation, with timed operations by message size class."""

    group: str
    operation: str
    entered: int
    message_bytes: int
    sizes: tuple[tuple[str, TimedMessages], ...]


@dataclass(frozen=True, slots=True)
class SavedGroup:
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
    groups: tuple[SavedGroup, ...]
    folded: frozenset[int]
    steps: DurationHistogram
    last_step: StepMark | None
    totals: RankCounts
    communicating: tuple[int, int] = (0, 0)
    blocked: tuple[int, int] = (0, 0)
    checkpoints: tuple[CheckpointCounts, ...] = ()
    saves: Saves = NO_SAVES
    calls: tuple[tuple[CallSeries, DurationHistogram], ...] = ()
