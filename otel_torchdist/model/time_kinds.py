"""What a thread spends time on between its calls."""

from __future__ import annotations

import enum


class TimeKind(enum.Enum):
    """What a thread spends time on between its calls; the value is its name in documents."""

    DATA = "data"
    """It waits for a batch."""
    CHECKPOINT = "checkpoint"
    """It saves or loads a checkpoint."""
    OPTIMIZER = "optimizer"
    """It is in an optimizer's step."""
    BACKWARD = "backward"
    """It is in a backward pass."""
    REMOTE_CALL = "remote call"
    """It waits for a remote procedure call, or for all workers."""
    COMPUTING = "computing"
    """None of these: forward passes, and whatever else its code does."""

    @property
    def shows_training_thread(self) -> bool:
        """Whether only the thread that trains spends time on it. Data waits are recorded on that thread only."""
        match self:
            case TimeKind.DATA | TimeKind.OPTIMIZER | TimeKind.BACKWARD:
                return True
            case TimeKind.CHECKPOINT | TimeKind.REMOTE_CALL | TimeKind.COMPUTING:
                return False
