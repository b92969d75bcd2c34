"""The series of one rank: maps operations and remote calls to their counters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_torchdist.model.activity_kinds import CALL_SIDES
from otel_torchdist.model.calls import with_dimensions
from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import GroupName
from otel_torchdist.model.numerics import Numerics
from otel_torchdist.model.operations import BLOCKING, RAISED, Operation, StepMark
from otel_torchdist.model.remote_calls import Side
from otel_torchdist.model.text import size_class
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.counts import NO_SAVES, CheckpointCounts, RankCounts, Saves
from otel_torchdist.telemetry.metrics.durations import DurationHistogram, TimedMessages
from otel_torchdist.telemetry.metrics.labels import SeriesLabels, label_value
from otel_torchdist.telemetry.metrics.snapshots import Duration, GroupInfo, GroupSnapshot
from otel_torchdist.telemetry.semconv import OTHER
from otel_torchdist.telemetry.spans.activities import SYSTEM

_COUNTED: Final = (*BLOCKING, *RAISED)


def _metric_of(side: Side) -> str:
    match side:
        case Side.CALLER:
            return semconv.RPC_CLIENT_DURATION
        case Side.CALLEE:
            return semconv.RPC_SERVER_DURATION


_METRICS: Final = {kind: _metric_of(side) for kind, side in CALL_SIDES.items()}


class CallSeries(NamedTuple):
    """A series of remote calls.

    Attributes:
        metric: The histogram of their side.
        labels: System, function, and type of the error or ''.
    """

    metric: str
    labels: tuple[str, str, str]


class CallDurations:
    """Durations of remote calls whose end is known from a wait, from the function's return, or from an exception.

    Attributes:
        durations: Histogram of each series.
    """

    def __init__(self, names: NamesReader, labels: SeriesLabels) -> None:
        """Start without calls. `labels` are shared by all ranks of the job."""
        self.durations: dict[CallSeries, DurationHistogram] = {}
        self._names = names
        self._labels = labels

    def resume(self, durations: Iterable[tuple[CallSeries, DurationHistogram]]) -> None:
        """Continue from another reader's histograms."""
        for series, histogram in durations:
            self.durations.setdefault(series, DurationHistogram()).add(histogram)

    def count(self, activity: Activity) -> Duration | None:
        """Count an activity that has ended. Return its duration if it is a remote call with a known end."""
        metric = _METRICS.get(activity.kind)
        if metric is None or activity.completed_ns is None or activity.how not in _COUNTED:
            return None
        error = self._names.text(activity.failure) or semconv.OTEL_OTHER if activity.how in RAISED else ""
        method = self._names.text(activity.detail) or semconv.OTEL_OTHER
        series = CallSeries(metric, (SYSTEM, *self._labels.call(method, error)))
        seconds = (activity.completed_ns - activity.entered_ns) / 1e9
        self.durations.setdefault(series, DurationHistogram()).observe(seconds)
        return Duration(metric, series.labels, seconds)

    @property
    def copies(self) -> tuple[tuple[CallSeries, DurationHistogram], ...]:
        """The current histograms, as copies."""
        return tuple((series, histogram.copy()) for series, histogram in self.durations.items())


@dataclass(frozen=True, slots=True)
class SeriesState:
    """Counters of one group and operation, with timed operations by message size class."""

    group: str
    operation: str
    entered: int
    message_bytes: int
    sizes: tuple[tuple[str, TimedMessages], ...]


@dataclass(frozen=True, slots=True)
class MetricsState:
    """All counters of `RankMetrics`.

    Attributes:
        series: Counters, by group and operation.
        groups: Groups with separate series.
        folded: Name ids of groups without separate series.
        steps: Durations of steps.
        last_step: The last step that ended.
        communicating: Nanoseconds with an operation in flight, and the time up to which they have been counted.
        blocked: Nanoseconds with a blocked thread, and the time up to which they have been counted.
        checkpoints: Counts of checkpoints, by operation and stage.
        saves: The times of successful saves.
        calls: Durations of remote procedure calls.
    """

    series: tuple[SeriesState, ...]
    groups: tuple[GroupSnapshot, ...]
    folded: frozenset[int]
    steps: DurationHistogram
    last_step: StepMark | None
    totals: RankCounts
    communicating: tuple[int, int] = (0, 0)
    blocked: tuple[int, int] = (0, 0)
    checkpoints: tuple[CheckpointCounts, ...] = ()
    saves: Saves = NO_SAVES
    calls: tuple[tuple[CallSeries, DurationHistogram], ...] = ()


MAX_CACHED_TARGETS: Final = 16_384


@dataclass(slots=True, eq=False)
class Series:
    """Counters of one group and operation: timed operations by message size, and the newest input statistics."""

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
        return GroupSnapshot(self.label, self.info, self.aligned, self.started, self.completed)


class CountedSeries(NamedTuple):
    """The counters of an operation. `progress` is None if its sequence number is not comparable between ranks."""

    series: Series
    progress: GroupProgress | None


class RankSeries:
    """The series of one rank. Not thread-safe.

    Attributes:
        counters: Counters by the labels of group and operation.
        groups: Groups with separate series, by label.
        folded: Name ids of groups without separate series.
    """

    def __init__(self, names: NamesReader, labels: SeriesLabels) -> None:
        """Start without series.

        Args:
            names: The dictionary of the rank's tape.
            labels: Labels shared by all ranks of the job.
        """
        self.counters: dict[tuple[str, str], Series] = {}
        self.groups: dict[str, GroupProgress] = {}
        self.folded: set[int] = set()
        self._names = names
        self._labels = labels
        self._by_id: dict[int, GroupProgress] = {}
        self._renamed = names.renamed
        self._targets: dict[tuple[int, int], CountedSeries] = {}

    @property
    def states(self) -> tuple[SeriesState, ...]:
        """The counts by group and operation."""
        return tuple(
            SeriesState(series.group, series.operation, series.entered, series.message_bytes, series.timed)
            for series in self.counters.values()
        )

    @property
    def group_states(self) -> tuple[GroupSnapshot, ...]:
        """The progress of each group."""
        return tuple(group.snapshot for group in self.groups.values())

    def resume(self, series: Iterable[SeriesState], groups: Iterable[GroupSnapshot], folded: Iterable[int]) -> None:
        """Continue from another reader's counts."""
        for state in series:
            labels = self._labels.pair(label_value(state.group), state.operation)
            resumed = self.counters[labels] = Series(*labels, state.entered, state.message_bytes)
            for size, timed in state.sizes:
                resumed.sizes.setdefault(self._labels.size(labels, size), TimedMessages()).add(timed)
        for group in groups:
            label = self._labels.group(label_value(group.group))
            info = GroupInfo(label_value(group.info.description), group.info.size)
            self.groups[label] = GroupProgress(
                label, info, group.aligned, group.started_sequence, group.completed_sequence
            )
        self.folded = set(folded)

    def target(self, operation: Operation) -> CountedSeries:
        """Return the counters of an operation."""
        # A rendezvous has no signature; no name has the id -1.
        signature = -1 if operation.kind is RecordKind.RENDEZVOUS else operation.signature
        target = self._targets.get((operation.group, signature))
        if target is not None:
            return target
        if len(self._targets) == MAX_CACHED_TARGETS:
            self._targets.clear()
        target = self._find_target(operation)
        self._targets[operation.group, signature] = target
        return target

    def _find_target(self, operation: Operation) -> CountedSeries:
        group = self._group(operation.group)
        labels = self._labels.pair(group.label if group else OTHER, self._operation_name(operation))
        series = self.counters.get(labels)
        if series is None:
            series = self.counters[labels] = Series(*labels)
        is_comparable = group is not None and group.aligned and operation.kind is RecordKind.OPERATION
        return CountedSeries(series, group if is_comparable else None)

    def _operation_name(self, operation: Operation) -> str:
        if operation.kind is RecordKind.RENDEZVOUS:
            return semconv.RENDEZVOUS
        signature = self._names.signature(operation.signature)
        return signature.operation if signature else OTHER

    def _group(self, name_id: int) -> GroupProgress | None:
        """Return the group with this name id; None if it is unknown or has no separate series."""
        group = self._by_id.get(name_id)
        if group is not None:
            return group
        name = self._names.group(name_id)
        if name is None:
            return None
        label = self._labels.group(name.key)
        if label == OTHER:
            self.folded.add(name_id)
            return None
        group = self.groups.get(label)
        if group is None:
            group = self.groups[label] = GroupProgress(label, _info_of(name), name.aligned)
        self._by_id[name_id] = group
        return group

    def rename(self) -> None:
        """Update the descriptions of groups that a device mesh has renamed."""
        if self._names.renamed == self._renamed:
            return
        self._renamed = self._names.renamed
        for name_id, group in self._by_id.items():
            name = self._names.group(name_id)
            if name is not None:
                group.info = _info_of(name)

    def timed(self, series: Series, message_bytes: int) -> tuple[str, TimedMessages]:
        """Return the label of a message size, and the timed operations of that size."""
        size = size_class(message_bytes)
        timed = series.sizes.get(size)
        if timed is None:
            size = self._labels.size((series.group, series.operation), size)
            timed = series.sizes.setdefault(size, TimedMessages())
        return size, timed


def _info_of(name: GroupName) -> GroupInfo:
    return GroupInfo(label_value(with_dimensions(name.description, name)), len(name.ranks))
