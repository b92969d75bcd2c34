"""Counts of one rank: totals of its operations, and its checkpoints by operation and stage."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Final

from otel_torchdist.model.activity_kinds import CHECKPOINT_OPERATIONS, CHECKPOINTS
from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import How
from otel_torchdist.model.numerics import Numerics, NumericsFlag, Parameters
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.model.rank_state.occupations import STAGES
from otel_torchdist.tape.layout import clipped
from otel_torchdist.tape.names.reader import Names
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.records.checkpoint_log import CheckpointParts, inner_first
from otel_torchdist.telemetry.semconv import OTHER

# A new total needs a field in `RankCounts`, a line that counts it, and a row in `definitions`. The state for the next
# reader and the snapshot for exporters both contain the whole `RankCounts`.

_SAMPLED = int(NumericsFlag.SAMPLED)


@dataclass(slots=True)
class RankCounts:
    """Totals of one rank.

    Attributes:
        untracked: Operations enqueued on a device, with an unknown end.
        failed: Operations that ended with an exception.
        sampled: Operations with sampled tensor statistics.
        non_finite: Operations with an infinite or NaN input.
        unseen: Operations with inputs that could not be inspected, by reason.
        skipped_steps: Steps skipped by a gradient scaler.
        loss_scale: The newest scale of a gradient scaler; None if unknown.
        compared_parameters: Number of checksums of parameters shared by replicas.
        replicas_left_out: Number of models and optimizers with too many parameters to compare.
    """

    untracked: int = 0
    failed: int = 0
    sampled: int = 0
    non_finite: int = 0
    skipped_steps: int = 0
    loss_scale: float | None = None
    compared_parameters: int = 0
    replicas_left_out: int = 0
    unseen: dict[str, int] = field(default_factory=dict[str, int])

    def count_ended(self, operation: Operation) -> None:
        """Count an operation that has ended, successfully or not."""
        self.untracked += operation.how is How.UNTRACKED
        self.failed += operation.how is How.FAILED

    def count_inspected(self, numerics: Numerics) -> None:
        """Count an operation with sampled statistics, or the reason why its tensors could not be inspected."""
        self.sampled += bool(int(numerics.flags) & _SAMPLED)
        if numerics.unseen is not None:
            reason = numerics.unseen.label
            self.unseen[reason] = self.unseen.get(reason, 0) + 1

    def count_non_finite(self, numerics: Numerics) -> None:
        """Count an operation with non-finite inputs."""
        self.non_finite += numerics.is_finite is False

    def count_step(self, mark: StepMark) -> None:
        """Count a step that has ended."""
        self.skipped_steps += mark.skipped
        self.loss_scale = mark.scale

    def count_parameters(self, parameters: Parameters) -> None:
        """Count a checksum of parameters."""
        self.compared_parameters += 1
        self.replicas_left_out = parameters.left_out

    def copy(self) -> RankCounts:
        """Return an independent copy."""
        return dataclasses.replace(self, unseen=dict(self.unseen))


WHOLE: Final = "whole"
"""Value of the label `stage` for a whole checkpoint."""
MIN_INTERVAL_NS: Final = 60_000_000_000
"""Minimum interval between two checkpoints. Files saved in quicker succession belong to one checkpoint."""
MAX_INTERVALS: Final = 8
"""Number of newest intervals kept."""


@dataclass(slots=True)
class CheckpointCounts:
    """Counts of one checkpoint stage of one operation.

    Attributes:
        operation: `save`, `torch.load`, …
        stage: `write_data`, …, or `WHOLE`.
        ended: Number of stages that ended successfully.
        failed: Number of stages that ended with an exception.
        duration_ns: Sum of durations.
        message_bytes: Bytes written or read.
        files: Files written or read.
    """

    operation: str
    stage: str
    ended: int = 0
    failed: int = 0
    duration_ns: int = 0
    message_bytes: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True)
class Saves:
    """The times of successful saves.

    Attributes:
        last_ns: End of the last save, by the monotonic clock; None before the first.
        intervals_ns: The newest intervals between saves, without intervals shorter than `MIN_INTERVAL_NS`.
    """

    last_ns: int | None = None
    intervals_ns: tuple[int, ...] = ()

    def after(self, ended_ns: int) -> Saves:
        """Return the times with one more save, which ended at `ended_ns`."""
        if self.last_ns is None:
            return Saves(ended_ns)
        interval_ns = ended_ns - self.last_ns
        intervals = (*self.intervals_ns, interval_ns) if interval_ns >= MIN_INTERVAL_NS else self.intervals_ns
        return Saves(max(self.last_ns, ended_ns), intervals[-MAX_INTERVALS:])


NO_SAVES: Final = Saves()


class CheckpointMetrics:
    """Counters of one tape's checkpoints.

    Attributes:
        saves: The times of successful saves.
    """

    def __init__(self, names: Names) -> None:
        """Start at zero."""
        self._parts = CheckpointParts(names)
        self._counts: dict[tuple[str, str], CheckpointCounts] = {}
        self.saves = NO_SAVES

    @property
    def counts(self) -> tuple[CheckpointCounts, ...]:
        """The current counts, as copies."""
        return tuple(map(replace, self._counts.values()))

    def resume(self, counts: tuple[CheckpointCounts, ...], saves: Saves, still_open: list[Activity]) -> None:
        """Continue from another reader's counts. `still_open` are the activities still open at its last poll."""
        for resumed in counts:
            operation, stage = _labels(resumed.operation, resumed.stage)
            self._counts[operation, stage] = replace(resumed, operation=operation, stage=stage)
        self.saves = saves
        for activity in still_open:
            self._parts.entered(activity)

    def consume(self, batch: Batch) -> None:
        """Count the activities of a batch."""
        for activity in batch.activities_entered:
            self._parts.entered(activity)
        for activity in inner_first(batch.activities_ended):
            self._count(activity)
            self._parts.ended(activity)

    def _count(self, activity: Activity) -> None:
        if activity.completed_ns is None:
            return
        labels = _labels(self._parts.operation_of(activity), self._parts.stage_of(activity) or WHOLE)
        counts = self._counts.setdefault(labels, CheckpointCounts(*labels))
        counts.duration_ns = clipped(counts.duration_ns + max(activity.completed_ns - activity.entered_ns, 0))
        if activity.how is How.CALL:
            counts.ended += 1
            counts.message_bytes = clipped(counts.message_bytes + activity.message_bytes)
            counts.files = clipped(counts.files + activity.files)
        counts.failed += activity.how is How.FAILED
        if activity.how is How.CALL and CHECKPOINTS[activity.kind].has_stored:
            self.saves = self.saves.after(activity.completed_ns)


def _labels(operation: str, stage: str) -> tuple[str, str]:
    """Return the labels of an operation and stage, with unknown names replaced by `other`."""
    operation_label = operation if operation in CHECKPOINT_OPERATIONS.values() else OTHER
    return operation_label, stage if stage in STAGES or stage == WHOLE else OTHER
