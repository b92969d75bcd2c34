"""Tracks the checkpoints of one rank: usual durations of their stages, and failed saves."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from otel_torchdist.model.activity_kinds import CHECKPOINT_OPERATIONS, CHECKPOINTS
from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.rank_state.occupations import (
    MEETINGS,
    NO_CHECKPOINTS,
    CheckpointView,
    FailedCheckpoint,
    RankCheckpoints,
)
from otel_torchdist.tape.names.reader import Names

MAX_TRACKED: Final = 1_024
"""Upper bound on the open checkpoint activities, and on the causes of failed stages, that are remembered."""
MAX_STAGES: Final = 64
MAX_FAILED: Final = 8
MAX_DURATIONS: Final = 16
"""Number of recent durations kept for a stage. Their median is the usual duration."""
_CONSEQUENCE: Final = "CheckpointException"
"""Exception that all ranks raise after one rank has failed."""


class CheckpointParts:
    """Finds the checkpoint that an activity belongs to."""

    def __init__(self, names: Names) -> None:
        """Start without activities. Names are looked up in `names`."""
        self._names = names
        self._operations: dict[int, str] = {}

    def entered(self, activity: Activity) -> None:
        """Add an activity. Called in the order of the tape."""
        if activity.kind not in CHECKPOINTS:
            return
        self._operations[activity.number] = self.operation_of(activity)
        while len(self._operations) > MAX_TRACKED:
            del self._operations[next(iter(self._operations))]

    def ended(self, activity: Activity) -> None:
        """Forget an activity that has ended. Called after all activities within it."""
        self._operations.pop(activity.number, None)

    def operation_of(self, activity: Activity) -> str:
        """Return the operation (`save`, `load`, …) of an activity's checkpoint; '' if unknown."""
        return CHECKPOINT_OPERATIONS.get(activity.kind) or self._operations.get(activity.parent, "")

    def stage_of(self, activity: Activity) -> str:
        """Return the name of the stage that an activity is; '' if it is not a checkpoint stage."""
        return self._names.text(activity.detail) or "" if activity.kind is ActivityKind.CHECKPOINT_STAGE else ""


def inner_first(activities: Iterable[Activity]) -> list[Activity]:
    """Return the checkpoints and their stages by the time of their end, inner activities first."""
    checkpoints = (activity for activity in activities if activity.kind in CHECKPOINTS)
    return sorted(checkpoints, key=lambda activity: (activity.completed_ns or 0, -activity.number))


class CheckpointLog:
    """The checkpoints of one rank so far."""

    def __init__(self, names: Names) -> None:
        """Start without checkpoints. Names are looked up in `names`."""
        self._names = names
        self._parts = CheckpointParts(names)
        self._causes: dict[int, FailedCheckpoint] = {}
        self._durations: dict[tuple[str, str], deque[int]] = {}
        self._failed: deque[FailedCheckpoint] = deque(maxlen=MAX_FAILED)

    def observe(self, entered: Iterable[Activity], ended: Iterable[Activity]) -> None:
        """Process the activities of a batch."""
        for activity in entered:
            self._parts.entered(activity)
        # A stage ends before its checkpoint, and its failure is the cause of the checkpoint's failure.
        for activity in inner_first(ended):
            self._ended(activity, self._parts.operation_of(activity), self._parts.stage_of(activity))
            self._parts.ended(activity)

    def snapshot(self, still_open: Iterable[Activity]) -> RankCheckpoints:
        """Return the checkpoints for a snapshot.

        Args:
            still_open: The open activities, oldest first.
        """
        threads: dict[int, list[Activity]] = {}
        for activity in still_open:
            if activity.kind in CHECKPOINTS:
                threads.setdefault(activity.thread, []).append(activity)
        if not threads and not self._failed:
            return NO_CHECKPOINTS
        views = (self._view(thread, activities) for thread, activities in threads.items())
        return RankCheckpoints(tuple(view for view in views if view is not None), tuple(self._failed))

    def _view(self, thread: int, activities: list[Activity]) -> CheckpointView | None:
        indices = reversed(range(len(activities)))
        outer = next((index for index in indices if activities[index].kind in CHECKPOINT_OPERATIONS), -1)
        if outer < 0:
            return None
        checkpoint, stages = activities[outer], activities[outer + 1 :]
        texts = [self._text(stage.detail) for stage in stages]
        inner = stages[-1] if stages else checkpoint
        stage = texts[-1] if texts and texts[-1] not in MEETINGS else ""
        operation = CHECKPOINT_OPERATIONS[checkpoint.kind]
        return CheckpointView(
            operation=operation,
            checkpoint=self._text(checkpoint.detail),
            thread=thread,
            meeting=next((text for text in reversed(texts) if text in MEETINGS), ""),
            stage=stage,
            since_ns=inner.entered_ns,
            message_bytes=inner.message_bytes,
            usual_ns=self._usual_ns(operation, stage),
        )

    def _usual_ns(self, operation: str, stage: str) -> int:
        durations = self._durations.get((operation, stage))
        return round(statistics.median(durations)) if durations else 0

    def _ended(self, activity: Activity, operation: str, stage: str) -> None:
        kind = CHECKPOINTS[activity.kind]
        waits_for_no_rank = kind.is_file or (stage and stage not in MEETINGS)
        if activity.how is How.CALL and activity.completed_ns is not None and waits_for_no_rank:
            self._remember(operation, stage, activity.completed_ns - activity.entered_ns)
        cause = self._causes.pop(activity.number, None)
        if activity.how is not How.FAILED:
            return
        failure = cause or self._failure(activity, operation, stage)
        if kind.saves:
            name = self._text(activity.detail)
            number, step = activity.number, activity.step
            self._failed.append(replace(failure, operation=operation, checkpoint=name, number=number, step=step))
        elif failure.is_cause and len(self._causes) < MAX_TRACKED:
            self._causes.setdefault(activity.parent, failure)

    def _failure(self, activity: Activity, operation: str, stage: str) -> FailedCheckpoint:
        error = self._text(activity.failure)
        return FailedCheckpoint(
            number=activity.number,
            operation=operation,
            checkpoint=self._text(activity.detail),
            stage=stage,
            error=error,
            message=self._text(activity.explanation),
            step=activity.step,
            ended_ns=activity.completed_ns or 0,
            is_cause=error != _CONSEQUENCE,
        )

    def _remember(self, operation: str, stage: str, duration_ns: int) -> None:
        key = operation, stage
        if key in self._durations or len(self._durations) < MAX_STAGES:
            self._durations.setdefault(key, deque(maxlen=MAX_DURATIONS)).append(duration_ns)

    def _text(self, name_id: int) -> str:
        return self._names.text(name_id) or ""
