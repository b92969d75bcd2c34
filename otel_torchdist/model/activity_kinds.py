"""The kinds of activities, one row each: how they are called, drawn and counted.

A kind that is no checkpoint is in no figure of checkpoints: a job that never saves has none.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.kinds import ActivityKind
from otel_torchdist.model.remote_calls import Side

# --- kinds of time ----------------------------------------------------------------------------------------------------
# What a thread spends time on between its calls.


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


class Detail(enum.Enum):
    """The meaning of the text that tells activities of one kind apart."""

    NONE = enum.auto()
    OPTIMIZER = enum.auto()
    DATASET = enum.auto()
    CHECKPOINT = enum.auto()
    """Its path or id."""
    STAGE = enum.auto()
    FUNCTION = enum.auto()
    WORKER = enum.auto()


class Track(enum.Enum):
    """The track of a timeline that shows activities of one kind."""

    NONE = enum.auto()
    """They are parts of a whole that is shown, or overlap with what the rank itself does."""
    ACTIVITIES = enum.auto()
    """They follow one another."""
    CHECKPOINTS = enum.auto()


@dataclass(frozen=True, slots=True)
class CheckpointRole:
    """The role of an activity in a checkpoint.

    Attributes:
        operation: The name of the whole checkpoint; '' for a stage, which has a name of its own.
        saves: Whether it saves, so that a job has lost something if it fails.
        has_stored: Whether a checkpoint is stored once it has ended.
        is_file: Whether it writes or reads one file, without stages.
    """

    operation: str
    saves: bool = False
    has_stored: bool = False
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class ActivityTraits:
    """What all activities of one kind have in common.

    Attributes:
        title: The name of the kind, such as `optimizer step`.
        detail: The meaning of `Activity.detail`.
        track: Where it is drawn.
        time: What its thread spends the time on; None if the thread need not wait for it. See also `time_kind_of`.
        checkpoint: Its role in a checkpoint; None if it is not part of one.
        side: The side of a remote procedure call that it is; None for others. Records of calls, and no others, hold a
            `RemoteCall`.
    """

    title: str
    detail: Detail
    track: Track
    time: TimeKind | None
    checkpoint: CheckpointRole | None = None
    side: Side | None = None


def _traits_of(kind: ActivityKind) -> ActivityTraits:
    match kind:
        case ActivityKind.OPTIMIZER_STEP:
            return ActivityTraits("optimizer step", Detail.OPTIMIZER, Track.ACTIVITIES, TimeKind.OPTIMIZER)
        case ActivityKind.DATA_WAIT:
            return ActivityTraits("data wait", Detail.DATASET, Track.ACTIVITIES, TimeKind.DATA)
        case ActivityKind.BACKWARD:
            return ActivityTraits("backward", Detail.NONE, Track.ACTIVITIES, TimeKind.BACKWARD)
        case ActivityKind.CHECKPOINT_SAVE:
            return _checkpoint(CheckpointRole("save", saves=True, has_stored=True))
        case ActivityKind.CHECKPOINT_LOAD:
            return _checkpoint(CheckpointRole("load"))
        case ActivityKind.CHECKPOINT_ASYNC_SAVE:  # its `save` ends later, elsewhere
            return _checkpoint(CheckpointRole("async_save", saves=True))
        case ActivityKind.TORCH_SAVE:
            return _checkpoint(CheckpointRole("torch.save", saves=True, has_stored=True, is_file=True))
        case ActivityKind.TORCH_LOAD:
            return _checkpoint(CheckpointRole("torch.load", is_file=True))
        case ActivityKind.CHECKPOINT_STAGE:
            return ActivityTraits("stage", Detail.STAGE, Track.NONE, TimeKind.CHECKPOINT, CheckpointRole(""))
        case ActivityKind.RPC_CLIENT:
            return ActivityTraits("call", Detail.FUNCTION, Track.NONE, TimeKind.REMOTE_CALL, side=Side.CALLER)
        case ActivityKind.RPC_SERVER:
            return ActivityTraits("call", Detail.FUNCTION, Track.NONE, None, side=Side.CALLEE)
        case ActivityKind.RPC_JOIN:
            return ActivityTraits("init_rpc", Detail.WORKER, Track.NONE, TimeKind.REMOTE_CALL)
        case ActivityKind.RPC_SHUTDOWN:
            return ActivityTraits("rpc.shutdown", Detail.WORKER, Track.NONE, TimeKind.REMOTE_CALL)


def _checkpoint(role: CheckpointRole) -> ActivityTraits:
    title = f"checkpoint {role.operation}"
    return ActivityTraits(title, Detail.CHECKPOINT, Track.CHECKPOINTS, TimeKind.CHECKPOINT, role)


TRAITS: Final = {kind: _traits_of(kind) for kind in ActivityKind}
"""The row of each kind."""
CHECKPOINTS: Final = {kind: role for kind, row in TRAITS.items() if (role := row.checkpoint) is not None}
"""Checkpoints and their stages; no other activity is in it."""
CHECKPOINT_OPERATIONS: Final = {kind: role.operation for kind, role in CHECKPOINTS.items() if role.operation}
"""Names of whole checkpoints."""
SIDES: Final = {kind: side for kind, row in TRAITS.items() if (side := row.side) is not None}
"""The activities that are remote procedure calls."""


def titles_on(track: Track) -> dict[ActivityKind, str]:
    """Return the titles of the kinds that a track shows."""
    return {kind: row.title for kind, row in TRAITS.items() if row.track is track}
