"""In which checkpoint a rank is, how long its stages usually take, and which could not be saved.

This is all that judges see of activities: evidence for words and for patience. That a rank waits is shown by operations
alone, and so is for whom.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_torchdist.tape.activities import CHECKPOINT_OPERATIONS, Activity
from otel_torchdist.tape.layout import ActivityKind, How
from otel_torchdist.tape.names import Names

MAX_KNOWN: Final = 1_024
MAX_HABITS: Final = 64
MAX_FAILED: Final = 8
REMEMBERED: Final = 16
"""Recent durations of a stage of which the median is usual."""
MEETINGS: Final = frozenset({"plan", "write", "read"})
"""Stages that include the collectives in which ranks wait for each other: how long they take says little of a rank."""
_SAVES: Final = frozenset(
    {ActivityKind.CHECKPOINT_SAVE, ActivityKind.CHECKPOINT_ASYNC_SAVE, ActivityKind.TORCH_SAVE}
)
_CONSEQUENCE: Final = "CheckpointException"
"""What all ranks get when one of them has failed."""


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint that a thread of a rank is in.

    Attributes:
        operation: `save`, `load`, `async_save`, `torch.save` or `torch.load`.
        checkpoint: Its path or id, or ''.
        thread: Native id of the thread.
        meeting: The stage of whose collectives it is a part: `plan`, `write`, `read`; '' if it is outside of any.
        stage: What the rank does in it, or ''.
        since_ns: When it began to do that.
        message_bytes: What that is going to write or read; 0 if not known.
        usual_ns: How long that usually takes; 0 if not known.
    """

    operation: str
    checkpoint: str
    thread: int
    meeting: str
    stage: str
    since_ns: int
    message_bytes: int = 0
    usual_ns: int = 0

    def is_shared_with(self, other: CheckpointView) -> bool:
        """Whether another rank's is the same checkpoint."""
        return (self.operation, self.checkpoint) == (other.operation, other.checkpoint)


@dataclass(frozen=True, slots=True)
class FailedCheckpoint:
    """A checkpoint that a rank could not save.

    Attributes:
        number: Number of its record.
        operation: As in `CheckpointView`.
        checkpoint: As in `CheckpointView`.
        stage: The stage that raised; '' if it was none.
        error: Type of the exception.
        message: Its message.
        step: The rank's step.
        ended_ns: When it failed.
        is_cause: Whether the exception was raised on this rank; else it was told of another rank's.
    """

    number: int
    operation: str
    checkpoint: str
    stage: str
    error: str
    message: str
    step: int
    ended_ns: int
    is_cause: bool


@dataclass(frozen=True, slots=True)
class RankCheckpoints:
    """The checkpoints of one rank.

    Attributes:
        open: Those that its threads are in.
        failed: The newest ones that it could not save.
    """

    open: tuple[CheckpointView, ...] = ()
    failed: tuple[FailedCheckpoint, ...] = ()

    def of_thread(self, thread: int) -> CheckpointView | None:
        """The one that a thread is in."""
        return next((one for one in self.open if one.thread == thread), None)


NO_CHECKPOINTS: Final = RankCheckpoints()


@dataclass(slots=True)
class _Known:
    """An activity that has been entered, and the exception that was raised in it first."""

    activity: Activity
    operation: str
    cause: FailedCheckpoint | None = None


class CheckpointLog:
    """Follows the checkpoints of one rank."""

    def __init__(self, names: Names) -> None:
        """Look up names in `names`."""
        self._names = names
        self._known: dict[int, _Known] = {}
        self._habits: dict[tuple[str, str], deque[int]] = {}
        self._failed: deque[FailedCheckpoint] = deque(maxlen=MAX_FAILED)

    def observe(self, entered: Iterable[Activity], ended: Iterable[Activity]) -> None:
        """Process what a poll of the tape has found."""
        for activity in entered:
            if activity.kind is not ActivityKind.OPTIMIZER_STEP:
                self._known[activity.number] = _Known(activity, self._operation_of(activity))
        # Inner ones first: it is they that show why the one around them has failed.
        for activity in sorted(ended, key=lambda one: -one.number):
            known = self._known.pop(activity.number, None)
            if known is not None:
                self._ended(activity, known)
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def shown(self, still_open: Iterable[Activity]) -> RankCheckpoints:
        """What a snapshot shows.

        Args:
            still_open: The activities that have not ended, oldest first.
        """
        threads: dict[int, list[Activity]] = {}
        for activity in still_open:
            if activity.kind is not ActivityKind.OPTIMIZER_STEP:
                threads.setdefault(activity.thread, []).append(activity)
        if not threads and not self._failed:
            return NO_CHECKPOINTS
        views = (self._view(thread, activities) for thread, activities in threads.items())
        return RankCheckpoints(tuple(view for view in views if view is not None), tuple(self._failed))

    def _view(self, thread: int, activities: list[Activity]) -> CheckpointView | None:
        around = next((at for at in reversed(range(len(activities))) if activities[at].kind in CHECKPOINT_OPERATIONS), -1)
        if around < 0:
            return None
        checkpoint, stages = activities[around], activities[around + 1 :]
        texts = [self._text(one.detail) for one in stages]
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
        durations = self._habits.get((operation, stage))
        return round(statistics.median(durations)) if durations else 0

    def _ended(self, activity: Activity, known: _Known) -> None:
        is_stage = activity.kind is ActivityKind.CHECKPOINT_STAGE
        stage = self._text(activity.detail) if is_stage else ""
        if activity.how is How.CALL and activity.completed_ns is not None and stage not in MEETINGS:
            self._remember(known.operation, stage, activity.completed_ns - activity.entered_ns)
        if activity.how is not How.FAILED:
            return
        failure = known.cause or self._failure(activity, known.operation, stage)
        around = self._known.get(activity.parent)
        if is_stage:
            if around is not None and around.cause is None and failure.is_cause:
                around.cause = failure
        elif activity.kind in _SAVES:
            named = self._failure(activity, known.operation, "")
            self._failed.append(
                FailedCheckpoint(
                    activity.number, known.operation, named.checkpoint, failure.stage, failure.error, failure.message,
                    activity.step, failure.ended_ns, failure.is_cause,
                )
            )  # fmt: skip

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
        if key in self._habits or len(self._habits) < MAX_HABITS:
            self._habits.setdefault(key, deque(maxlen=REMEMBERED)).append(duration_ns)

    def _operation_of(self, activity: Activity) -> str:
        """What the checkpoint is called that an activity is, or is a part of."""
        if activity.kind in CHECKPOINT_OPERATIONS:
            return CHECKPOINT_OPERATIONS[activity.kind]
        around = self._known.get(activity.parent)
        return around.operation if around is not None else ""

    def _text(self, name_id: int) -> str:
        return self._names.text(name_id) or ""
