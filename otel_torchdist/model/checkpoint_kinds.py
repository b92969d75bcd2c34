"""Which activities are checkpoints, or stages of one, and what each of them does.

A kind that is neither is in no figure of checkpoints: a job that never saves has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.kinds import ActivityKind


@dataclass(frozen=True, slots=True)
class CheckpointKind:
    """The role of an activity in a checkpoint.

    Attributes:
        operation: What the whole checkpoint is called; '' for a stage, which has a name of its own.
        saves: Whether it saves, so that a job has lost something if it fails.
        has_stored: Whether a checkpoint is stored once it has ended.
        is_file: Whether it writes or reads one file, without stages.
    """

    operation: str
    saves: bool = False
    has_stored: bool = False
    is_file: bool = False


def _described(kind: ActivityKind) -> CheckpointKind | None:
    match kind:
        case ActivityKind.CHECKPOINT_SAVE:
            return CheckpointKind("save", saves=True, has_stored=True)
        case ActivityKind.CHECKPOINT_LOAD:
            return CheckpointKind("load")
        case ActivityKind.CHECKPOINT_ASYNC_SAVE:  # its `save` ends later, elsewhere
            return CheckpointKind("async_save", saves=True)
        case ActivityKind.CHECKPOINT_STAGE:
            return CheckpointKind("")
        case ActivityKind.TORCH_SAVE:
            return CheckpointKind("torch.save", saves=True, has_stored=True, is_file=True)
        case ActivityKind.TORCH_LOAD:
            return CheckpointKind("torch.load", is_file=True)
        case (
            ActivityKind.OPTIMIZER_STEP
            | ActivityKind.DATA_WAIT
            | ActivityKind.BACKWARD
            | ActivityKind.RPC_CLIENT
            | ActivityKind.RPC_SERVER
            | ActivityKind.RPC_JOIN
            | ActivityKind.RPC_SHUTDOWN
        ):
            return None


CHECKPOINTS: Final = {kind: found for kind in ActivityKind if (found := _described(kind)) is not None}
"""Checkpoints and their stages; no other activity is in it."""
CHECKPOINT_OPERATIONS: Final = {kind: one.operation for kind, one in CHECKPOINTS.items() if one.operation}
"""Names of whole checkpoints."""
