"""The metrics of one rank's tape: updated by the reader's thread, read by scrapes at any time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from otel_torchdist.model.ids import run_label
from otel_torchdist.model.kinds import Flag, TapeState
from otel_torchdist.model.numerics import Numerics
from otel_torchdist.model.operations import SUCCEEDED, Operation, StepMark
from otel_torchdist.tape.figures import NO_FIGURES, read_figures
from otel_torchdist.tape.layout import clipped
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.counts import CheckpointMetrics, RankCounts
from otel_torchdist.telemetry.metrics.durations import BusyTime, DurationHistogram, Exemplar, TimeShares
from otel_torchdist.telemetry.metrics.labels import RunLabel, SeriesLabels, label_value
from otel_torchdist.telemetry.metrics.rank_series import CallDurations, MetricsState, RankSeries, Series
from otel_torchdist.telemetry.metrics.snapshots import (
    Duration,
    DurationListeners,
    OperationSnapshot,
    RankSnapshot,
    RankTimes,
)
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from otel_torchdist.telemetry.spans.segments import SegmentEnd, StepSegment

MAX_UNPUBLISHED: Final = 16_384
MAX_PENDING: Final = 512
"""Upper bound on the operations with values pending on a device."""

# Operators of IntFlag run Python code and would double the cost of a record. Operators of int do not.
_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)
_ON_DEVICE: Final = int(Flag.ON_DEVICE)


class RankMetrics:
    """Counters of one tape. `consume` and `retire` belong to the reader's thread, `snapshot` to any thread.

    The age and the duration of an operation on a device count from its start on the device. An operation whose end
    only a wait can show (`END_BY_WAIT`) is in flight from its call, but its age counts from the start of the wait:
    before the wait, it may have ended unnoticed. Durations are counted only if the end is known from the call, the wait
    or a device event. Ends detected by a poll or the watchdog are too coarse. Dropped, failed or untracked operations
    have no meaningful end.

    Attributes:
        labels: Labels of the groups and operations of its job.
        run: The label of its run.
    """

    def __init__(
        self,
        tape: TapeReader,
        labels: SeriesLabels,
        listeners: DurationListeners,
        label_of: Callable[[int], str] = run_label,
    ) -> None:
        """Start at zero.

        Args:
            tape: The tape whose batches will be consumed.
            labels: Labels shared by all ranks of the job.
            listeners: Receive each duration once, after the label of its run is settled.
            label_of: Returns the label of a run id.
        """
        self._tape = tape
        self.labels = labels
        self._listeners = listeners
        self._lock = threading.Lock()
        self.run = RunLabel(label_of)
        self._status: TapeStatus | None = None
        self._up: bool | None = True
        self._last_active_ns = tape.identity.monotonic_ns
        self._records_lost = 0
        self._totals = RankCounts()
        self._pending_values: dict[int, Series] = {}
        self._series = RankSeries(tape.names, labels)
        self._open: list[tuple[Series, int | None]] = []
        self._steps = DurationHistogram()
        self._last_step: StepMark | None = None
        self._shares = TimeShares()
        self._checkpoints = CheckpointMetrics(tape.names)
        self._figures = NO_FIGURES
        self._calls = CallDurations(tape.names, labels)
        # Bounded, because a run id may never settle. Then listeners miss the oldest durations.
        self._unpublished: deque[Duration] = deque(maxlen=MAX_UNPUBLISHED)

    @property
    def tape(self) -> TapeReader:
        """The tape of the rank."""
        return self._tape

    @property
    def state(self) -> MetricsState:
        """All counts so far, for the next reader."""
        with self._lock:
            return MetricsState(
                series=self._series.states,
                groups=self._series.group_states,
                folded=frozenset(self._series.folded),
                steps=self._steps.copy(),
                last_step=self._last_step,
                totals=self._totals.copy(),
                communicating=(self._shares.communicating.total_ns, self._shares.communicating.until_ns),
                blocked=(self._shares.blocked.total_ns, self._shares.blocked.until_ns),
                checkpoints=self._checkpoints.counts,
                saves=self._checkpoints.saves,
                calls=self._calls.copies,
            )

    def resume(self, state: MetricsState) -> None:
        """Continue from another reader's state. Called before the first `consume`."""
        self._series.resume(state.series, state.groups, state.folded)
        self._steps = state.steps.copy()
        self._last_step = state.last_step
        self._totals = state.totals.copy()
        self._shares = TimeShares(BusyTime(*state.communicating), BusyTime(*state.blocked))
        self._checkpoints.resume(state.checkpoints, state.saves, self._tape.open_activities())
        self._calls.resume(state.calls)

    def consume(self, batch: Batch, status: TapeStatus, now_ns: int) -> None:
        """Count a batch. Must be called after every poll: open operations change without new records.

        Args:
            batch: The batch of the poll.
            status: The tape's live words at about the time of the poll.
            now_ns: Monotonic clock.
        """
        is_running = status.state is TapeState.RUNNING and self._tape.is_alive()
        with self._lock:
            self._series.rename()
            for operation in batch.entered:
                self._count_entered(operation)
            for numerics in batch.numerics:
                if not numerics.is_pending and numerics.number in self._pending_values:
                    self._count_values(self._pending_values.pop(numerics.number), numerics)
            for operation in batch.ended:
                self._count_ended(operation)
            for mark in batch.steps:
                self._count_step(mark)
            for numerics in batch.numerics:
                if numerics.parameters is not None:
                    self._totals.count_parameters(numerics.parameters)
            if batch.activities_entered or batch.activities_ended:
                self._checkpoints.consume(batch)
            for activity in batch.activities_ended:
                duration = self._calls.count(activity)
                if duration is not None and self._listeners:
                    self._unpublished.append(duration)
            # A rank that has ended is not inside a call any more.
            still_open = self._tape.open_operations() if is_running else ()
            self._shares.consume(batch.ended, still_open, now_ns)
            self._open = [
                (self._series.target(operation).series, operation.waiting_since_ns) for operation in still_open
            ]
            for operation in still_open:
                if operation.started_ns is not None:
                    self._count_started(operation)
            ended_ns = [operation.completed_ns or 0 for operation in batch.ended]
            entered_ns = [operation.entered_ns for operation in batch.entered[-1:]]
            steps_ns = [mark.ended_ns for mark in batch.steps]
            self._last_active_ns = max([self._last_active_ns, *ended_ns, *entered_ns, *steps_ns])
            self._status = status
            self._figures = read_figures(self._tape.words)
            if is_running or status.state is not TapeState.RUNNING:  # otherwise its process vanished: see `mark_ended`
                self._up = None if status.state is TapeState.FINISHED else is_running
            self._records_lost = self._tape.lost + status.records_dropped
            self.run.update(status, is_running, now_ns)
        self._publish_durations()

    def mark_ended(self, cleanly: bool) -> None:
        """Mark the rank as ended, normally (`cleanly`) or not. The tape does not always show how it ended."""
        self._up = None if cleanly else False

    def add_exemplars(self, segment: StepSegment, anchor: FinishedSpan) -> None:
        """Add exemplars for an exported trace: its longest operation with an exact end, and its step.

        Args:
            segment: A segment of a step. Its durations have been counted.
            anchor: The segment's span.
        """
        end_s = (anchor.start_ns + segment.end_ns - segment.start_ns) / 1e9
        timed = [call for call in segment.operations if call.completed_ns is not None and call.is_timed]
        longest = max(timed, key=_duration_s, default=None)
        with self._lock:
            if longest is not None:
                series, _ = self._series.target(longest)
                _, messages = self._series.timed(series, longest.message_bytes)
                messages.durations.add_exemplar(Exemplar(anchor.trace_id, _duration_s(longest), end_s))
            if segment.end is SegmentEnd.STEP and segment.number == 0:
                seconds = (segment.end_ns - segment.start_ns) / 1e9
                self._steps.add_exemplar(Exemplar(anchor.trace_id, seconds, end_s))

    def snapshot(self, now_ns: int) -> RankSnapshot | None:
        """Return the rank's current state.

        Args:
            now_ns: Monotonic clock of the node, for ages.

        Returns:
            The state; None while the rank is held back (see `RunLabel`).
        """
        with self._lock:
            if self.run.shown is None or self._status is None:
                return None
            saves = self._checkpoints.saves
            return RankSnapshot(
                run=self.run.shown,
                rank=self._tape.identity.rank,
                up=self._up,
                operations=self._snapshot_operations(now_ns),
                groups=self._series.group_states,
                steps=self._steps.copy(),
                communicating_s=self._shares.communicating.total_ns / 1e9,
                blocked_s=self._shares.blocked.total_ns / 1e9,
                overhead_s=self._status.overhead_ns / 1e9,
                records_lost=self._records_lost,
                names_dropped=self._status.names_dropped,
                totals=self._totals.copy(),
                groups_folded=len(self._series.folded),
                kernel=self._tape.identity.kernel,
                torch=label_value(self._tape.identity.torch),
                checkpoints=self._checkpoints.counts,
                saved_age_s=None if saves.last_ns is None else max(now_ns - saves.last_ns, 0) / 1e9,
                save_interval_s=max(saves.intervals_ns, default=0) / 1e9,
                figures=self._figures,
                calls=dict(self._calls.copies),
                idle_s=max(now_ns - self._last_active_ns, 0) / 1e9,
                is_switched_off=bool(self._status.switched_off_ns),
                recording_level=self._status.recording_level,
            )

    @property
    def times(self) -> RankTimes:
        """The rank's times so far, as of the last `consume`."""
        with self._lock:
            shares, overhead_ns = self._shares, self._status.overhead_ns if self._status is not None else 0
            return RankTimes(shares.communicating.total_ns, shares.blocked.total_ns, overhead_ns, self._records_lost)

    def retire(self) -> None:
        """Publish the durations held back so far. No batch may be consumed afterwards."""
        with self._lock:
            self.run.settle()
        self._publish_durations()

    def _count_entered(self, operation: Operation) -> None:
        series, _ = self._series.target(operation)
        series.entered += 1
        series.message_bytes = clipped(series.message_bytes + operation.message_bytes)
        if operation.numerics is not None:
            self._totals.count_inspected(operation.numerics)
            self._count_values(series, operation.numerics)
        if not int(operation.flags) & _ON_DEVICE:
            self._count_started(operation)

    def _count_values(self, series: Series, numerics: Numerics) -> None:
        """Count the numerics of an operation's inputs, or remember them while they are pending."""
        if numerics.is_pending:
            self._pending_values[numerics.number] = series
            if len(self._pending_values) > MAX_PENDING:
                del self._pending_values[next(iter(self._pending_values))]
            return
        self._totals.count_non_finite(numerics)
        series.values = numerics if numerics.norm is not None else series.values

    def _count_started(self, operation: Operation) -> None:
        """Advance the group's last started operation. An operation on a device has started once the device runs it."""
        _, group = self._series.target(operation)
        if group is None or int(operation.flags) & _POINT_TO_POINT:
            return
        if group.started is None or operation.sequence > group.started:
            group.started = operation.sequence

    def _count_ended(self, operation: Operation) -> None:
        if operation.started_ns is not None:
            self._count_started(operation)
        self._totals.count_ended(operation)
        if operation.completed_ns is None or operation.how not in SUCCEEDED:
            return
        series, group = self._series.target(operation)
        if group is not None and not int(operation.flags) & _POINT_TO_POINT:
            group.completed = max(group.completed or 0, operation.sequence)
        if not operation.is_timed:
            return
        seconds = _duration_s(operation)
        size, timed = self._series.timed(series, operation.message_bytes)
        timed.observe(seconds, operation.message_bytes)
        if self._listeners:
            labels = (series.group, series.operation, size)
            self._unpublished.append(Duration(semconv.OPERATION_DURATION, labels, seconds))

    def _count_step(self, mark: StepMark) -> None:
        self._totals.count_step(mark)
        previous, self._last_step = self._last_step, mark
        if previous is None or mark.step != previous.step + 1:
            return
        seconds = (mark.ended_ns - previous.ended_ns) / 1e9
        self._steps.observe(seconds)
        if self._listeners:
            self._unpublished.append(Duration(semconv.STEP_DURATION, (), seconds))

    def _snapshot_operations(self, now_ns: int) -> tuple[OperationSnapshot, ...]:
        in_flight: dict[int, int] = {}
        oldest: dict[int, int] = {}
        for series, since_ns in self._open:
            key = id(series)
            in_flight[key] = in_flight.get(key, 0) + 1
            if since_ns is not None:
                oldest[key] = min(oldest.get(key, now_ns), since_ns)
        return tuple(
            OperationSnapshot(
                group=series.group,
                operation=series.operation,
                entered=series.entered,
                message_bytes=series.message_bytes,
                in_flight=in_flight.get(id(series), 0),
                oldest_age_s=(now_ns - oldest.get(id(series), now_ns)) / 1e9,
                sizes=dict(series.timed),
                values=series.values,
            )
            for series in self._series.counters.values()
        )

    def _publish_durations(self) -> None:
        run = self.run.shown
        if run is None or not self.run.settled or not self._unpublished:
            return
        durations = [duration._replace(labels=(run, *duration.labels)) for duration in self._unpublished]
        self._unpublished.clear()
        self._listeners.publish(durations)


def _duration_s(operation: Operation) -> float:
    return ((operation.completed_ns or 0) - operation.arrived_ns) / 1e9
