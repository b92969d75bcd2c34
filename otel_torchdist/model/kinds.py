"""Enumerations of the tape format: kinds of records, and facts about calls that fit in a few bits."""

from __future__ import annotations

import enum


class RecordKind(enum.IntEnum):
    """The kinds of records on a tape."""

    OPERATION = 1
    STEP = 2
    LATE_COMPLETION = 3
    RENDEZVOUS = 4
    ACTIVITY = 5
    """An activity of one thread: see `tape.records.activities`."""
    SPLITS = 6
    """Split sizes of an `all_to_all`, written before the operation's record: see `tape.records.splits`."""
    NUMERICS = 7
    """Values in an operation's tensors, written before the operation's record: see `tape.records.numerics`."""


class ActivityKind(enum.IntEnum):
    """The kinds of activities."""

    OPTIMIZER_STEP = 1
    CHECKPOINT_SAVE = 2
    """`torch.distributed.checkpoint.save`."""
    CHECKPOINT_LOAD = 3
    CHECKPOINT_ASYNC_SAVE = 4
    """`async_save` until it returns. The save itself is an activity of another thread or process."""
    CHECKPOINT_STAGE = 5
    """A part of a save or load, such as `write_data`."""
    TORCH_SAVE = 6
    """`torch.save` into a file."""
    TORCH_LOAD = 7
    DATA_WAIT = 20
    BACKWARD = 21
    RPC_CLIENT = 40
    """A remote procedure call on the caller's side: see `tape.records.activities`."""
    RPC_SERVER = 41
    """A remote procedure call on the side of the worker that runs the function."""
    RPC_JOIN = 42
    """`init_rpc`, which waits for all workers."""
    RPC_SHUTDOWN = 43
    """`rpc.shutdown`, which waits for all workers and their calls."""


class CallMode(enum.IntEnum):
    """The API by which a remote procedure call was made."""

    UNKNOWN = 0
    """Not visible to the worker that runs the function."""
    SYNC = 1
    """`rpc_sync`: the calling thread waits for the result."""
    ASYNC = 2
    """`rpc_async`: the calling thread need not wait."""
    REMOTE = 3
    """`remote`: the result stays with the worker that runs the function."""


class Phase(enum.IntEnum):
    """Whether autograd made a call during a backward pass: from its threads or hooks, directly or indirectly.

    Outside of backward is more than forward: gradients may be reduced, and sent between pipeline stages, after
    `backward` has returned. Recomputation of checkpointed activations happens within backward.
    """

    UNKNOWN = 0
    """This torch does not show the phase, or a callback made the call on a thread without user code."""
    OUTSIDE_BACKWARD = 1
    BACKWARD = 2


class Flag(enum.IntFlag):
    """Facts about an operation that fit in a bit."""

    ASYNC = 1
    POINT_TO_POINT = 2
    COALESCED = 4
    """Issued between `_start_coalescing` and `_end_coalescing`. The operation's own Work means nothing. An open record
    means nothing either, until there is a wait for the Work that `_end_coalescing` returns."""
    END_BY_WAIT = 8
    """Only a returned wait proves the end. Before a wait, an open record does not mean that the operation is stuck."""
    SIGNATURE_CAPPED = 16
    """The call has more tensors than the signature describes."""
    ON_DEVICE = 32
    """Runs on a device: entered and returned refer to the enqueueing, and it starts when the device reaches it."""
    REDUCE_OP_UNREAD = 64
    """The reduce op in the signature comes from an earlier call at the same call site. This call's was not read."""
    UNEVEN = 128
    """An `all_to_all` whose parts on this rank, sent or expected, differ in size. Earlier records of kind `SPLITS` hold
    the sizes. Or an `all_gather` in which this rank expects a size other than its own from some member."""


class How(enum.IntEnum):
    """The source of a time in a record. At least two bits are set: no flipped bit turns an empty word into a time."""

    CALL = 0b0011
    """The call itself returned."""
    WAIT = 0b0101
    """`Work.wait` or `wait_tensor` returned."""
    POLL = 0b0110
    """`Work.is_completed()` returned true; the resolution is the polling interval."""
    EVENT = 0b0111
    """A device event recorded around the operation, on the device's own clock."""
    CALLBACK = 0b1101
    """The Work's future completed, just before a wait for it would have returned. Only the native kernel uses this."""
    WATCHDOG = 0b1011
    """PyTorch's watchdog observed the end; the resolution is the watchdog's interval."""
    UNTRACKED = 0b1001
    """The operation was enqueued on a device; its start and end there are unknown."""
    ABANDONED = 0b1010
    """The Work was dropped without a wait; the end is unknown."""
    FAILED = 0b1100
    """The call raised."""


class RunIdState(enum.IntEnum):
    """The state of the ranks' agreement on the run's id."""

    NONE = 0
    PROVISIONAL = 1
    AGREED = 2
    UNAGREED = 3
    """There is no store to agree through: each rank uses its own id."""


class Blame(enum.IntEnum):
    """The cause that an exception's message gives for the failure of an operation."""

    UNKNOWN = 0
    TIMEOUT = 1
    """A timeout of the backend or of a store."""
    CONNECTION = 2
    """A lost or refused connection to another rank."""
    TAKEN = 3
    """The address to listen on is in use."""


class Kernel(enum.IntEnum):
    """The implementation that records the calls of a rank."""

    UNKNOWN = 0
    """The tape does not record it."""
    PYTHON = 1
    NATIVE = 2
    """The C++ library. Calls that it does not support are still recorded in Python."""


class TapeState(enum.IntEnum):
    """The writer's state. Values differ in many bits: no single flipped bit turns one into another."""

    RUNNING = 0x52554E4E
    FINISHED = 0x46494E49
    FAILED = 0x4641494C
