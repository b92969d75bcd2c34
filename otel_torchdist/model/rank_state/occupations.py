"""Facts about a rank besides its operations: threads, shared groups, child processes, pace and checkpoints."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from otel_torchdist.model.names import CallSiteName

# --- threads ----------------------------------------------------------------------------------------------------------
# What threads do outside of operations, by their records and stacks.


class OccupationKind(enum.Enum):
    """The kinds of occupations."""

    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer step"
    FUTURE = "future"
    """`Future.wait`, such as on the future that `Work.get_future` returns."""


class Occupation(NamedTuple):
    """An activity of a thread that may wait for an operation without a record of the wait.

    Attributes:
        thread: Native id of the thread.
    """

    kind: OccupationKind
    thread: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """A group that two threads use at the same time.

    Attributes:
        group: The group's key.
        operations: The two operations that were in flight together most recently.
        call_sites: The call sites of the two operations.
        step: The rank's step.
        callers: The outermost functions of the two threads, see `CallerName`; '' if unknown.
        times: How often two threads were seen in the group together.
    """

    group: str
    operations: tuple[str, str]
    call_sites: tuple[CallSiteName | None, CallSiteName | None]
    step: int
    callers: tuple[str, str] = ("", "")
    times: int = 1


@dataclass(frozen=True, slots=True)
class ChildWait:
    """A child process that a rank waits for.

    Attributes:
        name: Description of the process: `DataLoader worker 1`, `child process`.
        doing: Current activity: `in read() of /data/shard-7 (nfs4 at /data)`.
        since_ns: When that activity began.
        others: Process ids of other children in the same activity.
        is_locked: Whether the children wait for locks that no thread of theirs can release.
        is_forked: Whether the children were forked from the rank, and so inherited its locks.
        holder: Position of the rank's only other thread in user code, which may have held the lock; None if there is no
            such thread, or several.
    """

    pid: int
    name: str
    doing: str
    since_ns: int
    others: tuple[int, ...] = ()
    is_locked: bool = False
    is_forked: bool = False
    holder: CallSiteName | None = None


@dataclass(frozen=True, slots=True)
class CallPace:
    """The pace of a rank's calls, and its CPU use between them.

    Attributes:
        called_ns: When the rank last entered or left an operation, ended a step or began or ended an activity; 0 for
            never.
        longest_gap_ns: The longest time between two calls so far, outside of operations; 0 if all were short.
        busy: Recent CPU use of the rank and its child processes outside of operations, as a share of one core; None if
            unknown.
    """

    called_ns: int = 0
    longest_gap_ns: int = 0
    busy: float | None = None

    def moved(self, offset_ns: int) -> CallPace:
        """Return a copy on a clock that is ahead by `offset_ns`."""
        return replace(self, called_ns=self.called_ns + offset_ns) if self.called_ns else self


NO_PACE: Final = CallPace()


# --- checkpoints ------------------------------------------------------------------------------------------------------
# Checkpoints in progress and failed checkpoints of a rank. Verdicts use them only in their text and to be more patient:
# operations alone show that a rank waits, and for whom.


MEETINGS: Final = frozenset({"plan", "write", "read"})
"""Stages that contain collectives. Ranks wait for each other there, so their duration says little about one rank."""
STAGES: Final = MEETINGS | {
    "_stateful_to_state_dict",
    "create_checkpoint_daemon_process",
    "finish_checkpoint",
    "global_step",
    "local_step",
    "maybe_synchronize_staging",
    "read_data",
    "stage_state_dict",
    "write_data",
}
"""All stages of torch 2.8 to 2.15."""


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint in progress on a thread of a rank.

    Attributes:
        operation: `save`, `load`, `async_save`, `torch.save` or `torch.load`.
        checkpoint: The checkpoint's path or id, or ''.
        thread: Native id of the thread.
        meeting: The stage with collectives that the thread is in: `plan`, `write` or `read`; '' if none.
        stage: The innermost stage, or ''.
        since_ns: When that stage began.
        message_bytes: Bytes that the stage is going to write or read; 0 if unknown.
        usual_ns: Usual duration of the stage; 0 if unknown.
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
        """Return whether another rank's view is of the same checkpoint."""
        return (self.operation, self.checkpoint) == (other.operation, other.checkpoint)


@dataclass(frozen=True, slots=True)
class FailedCheckpoint:
    """A checkpoint that a rank could not save.

    Attributes:
        number: Number of the record.
        operation: As in `CheckpointView`.
        checkpoint: As in `CheckpointView`.
        stage: The stage that raised; '' if none.
        error: Type of the exception.
        message: The exception's message.
        step: The rank's step.
        ended_ns: When the checkpoint failed.
        is_cause: Whether this rank raised the exception; else it received another rank's.
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
        open: Checkpoints in progress.
        failed: The newest failed checkpoints.
    """

    open: tuple[CheckpointView, ...] = ()
    failed: tuple[FailedCheckpoint, ...] = ()

    def of_thread(self, thread: int) -> CheckpointView | None:
        """Return the checkpoint in progress on a thread, or None."""
        return next((checkpoint for checkpoint in self.open if checkpoint.thread == thread), None)


NO_CHECKPOINTS: Final = RankCheckpoints()
