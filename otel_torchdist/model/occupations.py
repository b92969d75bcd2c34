"""What the threads of a rank are in besides recorded operations: checkpoints, child processes, shared groups."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from otel_torchdist.model.names import CallSiteName

# --- threads ----------------------------------------------------------------------------------------------------------
# What the threads of a rank are busy with besides operations, as records and stacks show it.


class Engagement(enum.Enum):
    """What a thread is in."""

    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer step"
    FUTURE = "future"
    """`Future.wait`, as of what `Work.get_future` returns."""


class Occupation(NamedTuple):
    """What a thread is in.

    Attributes:
        engagement: What that is.
        thread: Native id of the thread.
        since_ns: Since when.
    """

    engagement: Engagement
    thread: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """A group that two threads use at the same time.

    Attributes:
        group: Its key.
        operations: The two operations that met last.
        call_sites: Where they were called.
        step: The rank's step.
        callers: What the two threads run, see `CallerName`; '' where that is not known.
        times: How often it was seen.
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
        pid: Its process id.
        name: What it is: `DataLoader worker 1`, `child process`.
        doing: What it is doing: `in read() of /data/shard-7 (nfs4 at /data)`.
        since_ns: Since when.
        others: Process ids of other children that do the same.
        is_locked: Whether they wait for locks of their own, which nothing can release any more.
        is_forked: Whether they were forked from the rank, and so inherited its locks.
        holder: Where the only other thread of the rank that runs the user's code is, which may have held the lock; None
            if there is none, or there are several.
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
    """How often a rank calls operations, and whether it works meanwhile.

    Attributes:
        called_ns: When it last entered or left an operation, ended a step or began or ended an activity; 0 for never.
        longest_gap_ns: The longest time between two calls so far, outside of operations; 0 if all were short.
        busy: The share of a core that it and the processes that it has started used lately, outside of operations;
            None if that is not known.
    """

    called_ns: int = 0
    longest_gap_ns: int = 0
    busy: float | None = None

    def moved(self, offset_ns: int) -> CallPace:
        """The same on a clock that is ahead by this much."""
        return replace(self, called_ns=self.called_ns + offset_ns) if self.called_ns else self


NO_PACE: Final = CallPace()


# --- checkpoints ------------------------------------------------------------------------------------------------------
# In which checkpoint a rank is, and which it could not save: all that those who judge see of activities.
# It is evidence for words and for patience. That a rank waits is shown by operations alone, and so is for whom.


MEETINGS: Final = frozenset({"plan", "write", "read"})
"""Stages that include the collectives in which ranks wait for each other: how long they take says little of a rank."""
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
"""All stages that torch 2.8 to 2.15 have."""


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
        is_cause: Whether the exception was raised on this rank; else it received another rank's.
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
