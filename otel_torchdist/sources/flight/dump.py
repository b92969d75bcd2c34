"""A dump of PyTorch's flight recorder, as one rank has written it.

The format is that of `torch/csrc/distributed/c10d/FlightRecorder.hpp`; versions 2.3 to 2.10 differ in optional keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from otel_torchdist.model.collectives import COLLECTIVES, MESSAGES, RECV, SEND, operation_named, operations_where
from otel_torchdist.model.names import CallSiteName


class EntryState(Enum):
    """The progress of an operation, as the recorder has seen it.

    gloo's recorder leaves it at `scheduled`, and NCCL's knows `started` only where `TORCH_NCCL_ENABLE_TIMING` is set.
    """

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group as `pg_config` describes it.

    Attributes:
        name: torch's name, the same on all members.
        description: What it is for, or ''.
        ranks: Global ranks of the members, ascending; empty where the recorder does not say (gloo).
    """

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The progress of one rank in a group, by sequence number; -1 if there is none or it was not recorded."""

    enqueued: int
    started: int
    completed: int


class FlightEntry(NamedTuple):
    """One recorded operation. Times are nanoseconds since the epoch, by the clock of the rank's host.

    Attributes:
        record_id: Position among all that the recorder has seen, from 0.
        pg_id: The group's number within this process.
        group: The group's name.
        description: What the group is for, or ''.
        sequence: Position among the collectives of its group.
        p2p_sequence: Position among this rank's own point-to-point operations of the group.
        operation: Position among all operations of the group.
        profiling_name: `nccl:all_reduce`, `gloo:broadcast`, …
        created_ns: When it was enqueued.
        started_ns: When a watchdog saw that it had begun; None if it did not.
        completed_ns: When a watchdog saw that it had ended; None if it did not.
        duration_ms: How long it took on the device; None without timing.
        state: See `EntryState`.
        retired: Whether the recorder has finished with it. For gloo, what is not retired is open.
        input_sizes: A shape for each input.
        input_dtypes: `Float`, `BFloat16`, …, one for each input.
        output_sizes: A shape for each output.
        output_dtypes: One for each output.
        timeout_ms: Its timeout; None if it is not recorded.
        is_p2p: Whether it is a point-to-point operation.
        thread: Id of the calling thread, as text; '' before version 2.9.
        frames: Where it was called, innermost first; empty if stacks were not recorded.
    """

    record_id: int
    pg_id: int
    group: str
    description: str
    sequence: int
    p2p_sequence: int
    operation: int
    profiling_name: str
    created_ns: int
    started_ns: int | None
    completed_ns: int | None
    duration_ms: float | None
    state: EntryState
    retired: bool
    input_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_sizes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]
    timeout_ms: int | None
    is_p2p: bool
    thread: str
    frames: tuple[CallSiteName, ...]


@dataclass(frozen=True, slots=True)
class FlightDump:
    """One rank's dump.

    Attributes:
        rank: Global rank.
        path: Where it was read.
        version: Of the format, such as (2, 10).
        library_version: Of NCCL or another communication library, or ''.
        groups: By the keys of `pg_config`, which are torch's names.
        statuses: By the keys of `pg_status`, which are local numbers (`FlightEntry.pg_id`).
        entries: Ascending by `record_id`.
        until_ns: Up to when nothing but this happened, in nanoseconds since the epoch; None in dumps of PyTorch, which
            do not record when they were written.
    """

    rank: int
    path: str
    version: tuple[int, int]
    library_version: str
    groups: Mapping[str, FlightGroup]
    statuses: Mapping[int, GroupStatus]
    entries: tuple[FlightEntry, ...]
    until_ns: int | None = None


_FROM_OUTPUTS: Final = operations_where(lambda row: not row.has_input_everywhere)
_DTYPES: Final = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16",
    "Float": "float32", "Double": "float64", "ComplexHalf": "complex32", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "Bool": "bool", "BFloat16": "bfloat16", "UInt16": "uint16", "UInt32": "uint32",
    "UInt64": "uint64", "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
    "Float8_e4m3fnuz": "float8_e4m3fnuz", "Float8_e5m2fnuz": "float8_e5m2fnuz",
}  # fmt: skip
_RECORDED_DTYPES: Final = {ours: recorded for recorded, ours in _DTYPES.items()}
_SENT: Final = re.compile(r"(?:send|isend) (\d{1,9})->(\d{1,9})")
_RECEIVED: Final = re.compile(r"(?:recv|irecv) (\d{1,9})<-(\d{1,9})")
COALESCED: Final = "coalesced"
"""The end of a block of coalesced calls, which are recorded one by one with the same sequence number."""
GLOO: Final = "gloo"


@dataclass(frozen=True, slots=True)
class CalledName:
    """The contents of a `profiling_name`.

    Attributes:
        library: `nccl`, `gloo`, `xccl`, `hccl`, …; '' if it does not say.
        operation: Our name of the operation: `all_reduce`, `send`, …
        source: Rank within the group that sends; -1 if it does not say.
        destination: Rank within the group that receives; -1 if it does not say.
    """

    library: str
    operation: str
    source: int = -1
    destination: int = -1

    @property
    def is_point_to_point(self) -> bool:
        """Whether it sends to, or receives from, one other rank."""
        return self.operation in MESSAGES


@lru_cache(maxsize=4_096)
def called_name(profiling_name: str) -> CalledName:
    """Read a profiling name; libraries that are not known are read in the same way."""
    library, colon, called = profiling_name.partition(":")
    if not colon:
        library, called = "", profiling_name
    sent, received = _SENT.match(called), _RECEIVED.match(called)
    if sent is not None:
        return CalledName(library, SEND, int(sent[1]), int(sent[2]))
    if received is not None:
        return CalledName(library, RECV, int(received[2]), int(received[1]))
    word = called.split(" ", 1)[0]
    return CalledName(library, operation_named(word) or "unknown")


def takes_outputs(operation: str) -> bool:
    """Whether the outputs describe the call on every rank, and the inputs do not."""
    return operation in _FROM_OUTPUTS


def dtype_name(recorded: str) -> str:
    """Return torch's own name of a dtype: `float32` for `Float`."""
    return _DTYPES.get(recorded, recorded)


def recorded_dtype(name: str) -> str:
    """Return the recorder's name of a dtype: `Float` for `float32`."""
    return _RECORDED_DTYPES.get(name, name)


_LIBRARIES: Final = frozenset({"nccl", "ncclx", "xccl", "gloo", "rccl", "rcclx", "mccl", "hccl"})
"""Those that torch 2.13 knows; 2.15 accepts any."""
_VARIANTS: Final = {"nccl2": "nccl", "nccl-lazy": "nccl"}
UNKNOWN_LIBRARY: Final = "gloo"


def recorded_operation(name: str) -> str | None:
    """The recorder's name of an operation: `_all_gather_base` for `all_gather_into_tensor`; None if it has none."""
    row = COLLECTIVES.get(name)
    return (row.recorded or None) if row is not None else None


def backend_on(configured: str, device: str) -> str:
    """Return the backend for a device type of a group that was created with `gloo`, or with `cpu:gloo,cuda:nccl`."""
    if ":" not in configured:
        return configured.lower()
    by_device = dict(part.split(":", 1) for part in configured.lower().split(",") if ":" in part)
    return by_device.get(device, next(iter(by_device.values()), ""))


def recorded_library(backend: str) -> str:
    """Return the library under which calls of a backend are recorded, so that `torchfrtrace` accepts them."""
    if backend in _LIBRARIES:
        return backend
    return _VARIANTS.get(backend, UNKNOWN_LIBRARY)
