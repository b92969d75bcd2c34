"""In which checkpoint a rank is, and which it could not save: all that those who judge see of activities.

It is evidence for words and for patience. That a rank waits is shown by operations alone, and so is for whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
