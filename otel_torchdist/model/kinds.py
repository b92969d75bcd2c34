"""Kinds of records, and facts about calls that fit in a few bits: the numbers are those of the tape's format."""

from __future__ import annotations

import enum


class RecordKind(enum.IntEnum):
    """What a record describes."""

    OPERATION = 1
    STEP = 2
    LATE_COMPLETION = 3
    RENDEZVOUS = 4
    ACTIVITY = 5
    """An interval of one thread that is no operation: see `tape.records.activities`."""
    SPLITS = 6
    """How much an `all_to_all` sends to each member, before the operation's own record: see `tape.records.splits`."""
    NUMERICS = 7
    """What values an operation's tensors have, before the operation's own record: see `tape.records.numerics`."""


class ActivityKind(enum.IntEnum):
    """What a thread is busy with during an activity."""

    OPTIMIZER_STEP = 1
    CHECKPOINT_SAVE = 2
    """`torch.distributed.checkpoint.save`."""
    CHECKPOINT_LOAD = 3
    CHECKPOINT_ASYNC_SAVE = 4
    """`async_save` until it returns; the save itself is an activity of another thread or process."""
    CHECKPOINT_STAGE = 5
    """A part of one of these, such as `write_data`."""
    TORCH_SAVE = 6
    """`torch.save` into a file."""
    TORCH_LOAD = 7
    DATA_WAIT = 20
    BACKWARD = 21
    RPC_CLIENT = 40
    """A remote procedure call, on the side of its caller: see `tape.records.activities`."""
    RPC_SERVER = 41
    """The same on the side of the worker that runs the function."""
    RPC_JOIN = 42
    """`init_rpc`, which waits for all workers."""
    RPC_SHUTDOWN = 43
    """`rpc.shutdown`, which waits for all workers and their calls."""


class CallMode(enum.IntEnum):
    """How a remote procedure call was made."""

    UNKNOWN = 0
    """The worker that runs the function does not see it."""
    SYNC = 1
    """By `rpc_sync`: its thread waits for the result."""
    ASYNC = 2
    """By `rpc_async`: its thread need not wait."""
    REMOTE = 3
    """By `remote`: the result stays with the worker that runs the function."""


class Phase(enum.IntEnum):
    """Whether a call was made by a backward pass of autograd: from its threads, its hooks, or what these call.

    Outside of backward is not only forward: gradients may be reduced, and pipelines send them on, after `backward` has
    returned. Within it lies what is computed again for checkpointed activations.
    """

    UNKNOWN = 0
    """This torch does not show it, or a callback made the call, on a thread without a line of the program."""
    OUTSIDE_BACKWARD = 1
    BACKWARD = 2


class Flag(enum.IntFlag):
    """Facts about an operation that fit in a bit."""

    ASYNC = 1
    POINT_TO_POINT = 2
    COALESCED = 4
    """Issued between `_start_coalescing` and `_end_coalescing`: its own Work means nothing, and neither does its
    being open until there is a wait for the Work that `_end_coalescing` returns."""
    END_BY_WAIT = 8
    """Only a returned wait proves its end; before a wait, open does not mean stuck."""
    SIGNATURE_CAPPED = 16
    """The call has more tensors than the signature describes."""
    ON_DEVICE = 32
    """Runs on a device: entered and returned refer to the enqueueing, and it starts when the device reaches it."""
    REDUCE_OP_UNREAD = 64
    """The reduce op in the signature is that of an earlier call from the same call site; this call's was not read."""
    UNEVEN = 128
    """An `all_to_all` in which this rank sends members parts of different size, or expects parts of another size;
    one without this flag is even. Records of kind `SPLITS` before it show how much. Or an `all_gather` in which it
    expects from some member another size than its own."""


class How(enum.IntEnum):
    """How a time in a record is known. At least two bits are set: no flipped bit turns an empty word into a time."""

    CALL = 0b0011
    """The call itself returned."""
    WAIT = 0b0101
    """`Work.wait` or `wait_tensor` returned."""
    POLL = 0b0110
    """`Work.is_completed()` returned true; the resolution is the polling interval."""
    EVENT = 0b0111
    """A device event recorded around the operation, on the device's own clock."""
    CALLBACK = 0b1101
    """The Work's future was complete, just before a wait for it would have returned. Only the native kernel uses it."""
    WATCHDOG = 0b1011
    """PyTorch's watchdog has seen the end; the resolution is the watchdog's interval."""
    UNTRACKED = 0b1001
    """The operation was handed to a device; when it started or ended there is unknown."""
    ABANDONED = 0b1010
    """Its Work was dropped without a wait; its end is unknown."""
    FAILED = 0b1100
    """It raised."""


class RunIdState(enum.IntEnum):
    """How far the ranks have agreed on the run's id."""

    NONE = 0
    PROVISIONAL = 1
    AGREED = 2
    UNAGREED = 3
    """There is no store to agree through: the id is this rank's own."""


class Blame(enum.IntEnum):
    """Where the message of an exception puts the fault for the end of an operation."""

    UNKNOWN = 0
    TIMEOUT = 1
    """The backend, or a store, has waited for as long as it may."""
    CONNECTION = 2
    """A connection to another rank is gone, or nobody listens where it was looked for."""
    TAKEN = 3
    """The address at which it was to listen is in use."""


class Kernel(enum.IntEnum):
    """What records the calls of a rank."""

    UNKNOWN = 0
    """The tape does not say."""
    PYTHON = 1
    NATIVE = 2
    """The library in C++; what it does not know is still recorded in Python."""


class TapeState(enum.IntEnum):
    """The writer's own state. Values differ in many bits: no single flipped bit turns one into another."""

    RUNNING = 0x52554E4E
    FINISHED = 0x46494E49
    FAILED = 0x4641494C
