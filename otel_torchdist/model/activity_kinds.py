"""One row for each kind of activity: its title, its track, and how its time is counted.

Checkpoint metrics count only kinds with a `CheckpointRole`, so a job that never saves exports none.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.kinds import ActivityKind
from otel_torchdist.model.remote_calls import Side

# --- kinds of time ----------------------------------------------------------------------------------------------------


class TimeKind(enum.Enum):
    """The kinds of time that a thread spends between its calls. The value is the name in JSON."""

    DATA = "data"
    """Waiting for a batch."""
    CHECKPOINT = "checkpoint"
    """Saving or loading a checkpoint."""
    OPTIMIZER = "optimizer"
    """Inside an optimizer's step."""
    BACKWARD = "backward"
    """Inside a backward pass."""
    REMOTE_CALL = "remote call"
    """Waiting for a remote procedure call, or for all workers."""
    COMPUTING = "computing"
    """Everything else: the forward pass and other code."""

    @property
    def shows_training_thread(self) -> bool:
        """Whether only the training thread spends time on this kind. Data waits are recorded on that thread only."""
        match self:
            case TimeKind.DATA | TimeKind.OPTIMIZER | TimeKind.BACKWARD:
                return True
            case TimeKind.CHECKPOINT | TimeKind.REMOTE_CALL | TimeKind.COMPUTING:
                return False


class Detail(enum.Enum):
    """The meaning of an activity's `detail` text."""

    NONE = enum.auto()
    OPTIMIZER = enum.auto()
    DATASET = enum.auto()
    CHECKPOINT = enum.auto()
    """The checkpoint's path or id."""
    STAGE = enum.auto()
    FUNCTION = enum.auto()
    WORKER = enum.auto()


class Track(enum.Enum):
    """The track of a timeline that shows activities of one kind."""

    NONE = enum.auto()
    """Not drawn: a part of another activity on the timeline, or an activity that overlaps the rank's own work."""
    ACTIVITIES = enum.auto()
    """Activities that follow one another."""
    CHECKPOINTS = enum.auto()


@dataclass(frozen=True, slots=True)
class CheckpointRole:
    """The role of an activity in a checkpoint.

    Attributes:
        operation: The name of the whole checkpoint; '' for a stage.
        saves: Whether a failure loses work.
        has_stored: Whether the checkpoint is stored once the activity has ended.
        is_file: Whether the activity writes or reads a single file, without stages.
    """

    operation: str
    saves: bool = False
    has_stored: bool = False
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class ActivityTraits:
    """The traits that all activities of one kind share.

    Attributes:
        title: The name of the kind, such as `optimizer step`.
        detail: The meaning of `Activity.detail`.
        time: The kind of time that its thread spends; None if the thread need not wait. See also `time_kind_of`.
        checkpoint: The role in a checkpoint; None for other activities.
        side: The side of a remote procedure call; None for other activities. Only records of remote calls hold a
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
        case ActivityKind.CHECKPOINT_ASYNC_SAVE:  # the save itself ends later, in another thread or process
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
"""The traits of each kind."""
CHECKPOINTS: Final = {kind: role for kind, row in TRAITS.items() if (role := row.checkpoint) is not None}
"""The roles of checkpoints and of their stages."""
CHECKPOINT_OPERATIONS: Final = {kind: role.operation for kind, role in CHECKPOINTS.items() if role.operation}
"""Names of whole checkpoints."""
CALL_SIDES: Final = {kind: side for kind, row in TRAITS.items() if (side := row.side) is not None}
"""The side of a remote procedure call, by kind of its activities."""


def titles_on(track: Track) -> dict[ActivityKind, str]:
    """Return the titles of the kinds that a track shows."""
    return {kind: row.title for kind, row in TRAITS.items() if row.track is track}
