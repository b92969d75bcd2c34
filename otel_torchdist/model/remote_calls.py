"""Remote procedure calls: what is known of each of their two sides."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from otel_torchdist.model.kinds import ActivityKind, CallMode

NO_WORKER: Final = -1


class Side(enum.Enum):
    """One side of a remote procedure call."""

    CALLER = enum.auto()
    CALLEE = enum.auto()


def _side_of(kind: ActivityKind) -> Side | None:
    match kind:
        case ActivityKind.RPC_CLIENT:
            return Side.CALLER
        case ActivityKind.RPC_SERVER:
            return Side.CALLEE
        case (
            ActivityKind.OPTIMIZER_STEP
            | ActivityKind.CHECKPOINT_SAVE
            | ActivityKind.CHECKPOINT_LOAD
            | ActivityKind.CHECKPOINT_ASYNC_SAVE
            | ActivityKind.CHECKPOINT_STAGE
            | ActivityKind.TORCH_SAVE
            | ActivityKind.TORCH_LOAD
            | ActivityKind.DATA_WAIT
            | ActivityKind.BACKWARD
            | ActivityKind.RPC_JOIN
            | ActivityKind.RPC_SHUTDOWN
        ):
            return None


SIDES: Final = {kind: side for kind in ActivityKind if (side := _side_of(kind)) is not None}
"""The activities that are calls. Their records, and no others, hold a `RemoteCall`."""


class RemoteCall(msgspec.Struct, frozen=True, gc=False):
    """One side of a remote procedure call.

    Attributes:
        worker: Id of the other worker; `NO_WORKER` if it is not known, as when the caller is not recorded.
        worker_name: Name id of its name.
        call_site: Name id of the line that made the call; only on the caller's side.
        mode: How it was made; only on the caller's side.
        caller_nonce: Nonce of the caller's tape, if this is the other side and the caller is recorded; else 0.
        caller_number: Number of the caller's record. On the caller's side, if the thread that calls runs a function for
            another worker meanwhile: number of the record of that, on this tape.
        caller_step: The step, of the first caller, in whose trace both sides are.
        returned_ns: When the function returned, and its thread was free again, though its result was still to come:
            torch calls that `async_execution`.
        is_waited_for: Whether the thread that has made the call waits for it.
    """

    worker: int = NO_WORKER
    worker_name: int = 0
    call_site: int = 0
    mode: CallMode = CallMode.UNKNOWN
    caller_nonce: int = 0
    caller_number: int = 0
    caller_step: int = 0
    returned_ns: int | None = None
    is_waited_for: bool = False
