"""A dump of PyTorch's flight recorder, written by one rank.

`torch/csrc/distributed/c10d/FlightRecorder.hpp` defines the format. Versions 2.3 to 2.10 differ in optional keys.
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
    """The progress of an operation.

    gloo's recorder always writes `scheduled`. NCCL's writes `started` only with `TORCH_NCCL_ENABLE_TIMING`.
    """

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group in `pg_config`.

    Attributes:
        name: torch's name, the same on all members.
        description: Its purpose, or ''.
        ranks: Global ranks of the members, ascending; empty for gloo, whose recorder does not record them.
    """

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The last sequence numbers of one rank in a group; -1 without one, or if not recorded."""

    enqueued: int
    started: int
    completed: int


class FlightEntry(NamedTuple):
    """One recorded operation. Times are nanoseconds since the epoch, by the clock of the rank's host.

    Attributes:
        record_id: Position among all recorded operations, from 0.
        pg_id: The group's number within this process.
        group: The group's name.
        description: The group's purpose, or ''.
        sequence: Position among the collectives of its group.
        p2p_sequence: Position among this rank's own point-to-point operations of the group.
        operation_number: Position among all operations of the group.
        profiling_name: `nccl:all_reduce`, `gloo:broadcast`, …
        created_ns: Time of enqueueing.
        started_ns: Time at which the watchdog noticed its start; None if it did not.
        completed_ns: Time at which the watchdog noticed its end; None if it did not.
        duration_ms: Duration on the device; None without timing.
        retired: Whether the recorder has stopped updating it. gloo retires an operation when it ends.
        input_sizes: A shape for each input.
        input_dtypes: `Float`, `BFloat16`, …, one for each input.
        output_sizes: A shape for each output.
        output_dtypes: One for each output.
        timeout_ms: Its timeout; None if not recorded.
        thread: Id of the calling thread, as text; '' before version 2.9.
        frames: Stack frames of the call, innermost first; empty if stacks were not recorded.
    """

    record_id: int
    pg_id: int
    group: str
    description: str
    sequence: int
    p2p_sequence: int
    operation_number: int
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
        path: Path that it was read from.
        version: Version of the format, such as (2, 10).
        library_version: Version of NCCL or another communication library, or ''.
        groups: By the keys of `pg_config`, which are torch's names.
        statuses: By the keys of `pg_status`, which are local numbers (`FlightEntry.pg_id`).
        entries: Ascending by `record_id`.
        until_ns: Time up to which the dump is complete, in nanoseconds since the epoch; None in PyTorch's own dumps,
            which do not record when they were written.
    """

    rank: int
    path: str
    version: tuple[int, int]
    library_version: str
    groups: Mapping[str, FlightGroup]
    statuses: Mapping[int, GroupStatus]
    entries: tuple[FlightEntry, ...]
    until_ns: int | None = None


_DESCRIBED_BY_OUTPUTS: Final = operations_where(lambda row: not row.has_input_everywhere)
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
"""Marks the end of a block of coalesced calls. Each call is also recorded, with the block's sequence number."""
GLOO: Final = "gloo"


@dataclass(frozen=True, slots=True)
class ProfilingName:
    """The contents of a `profiling_name`.

    Attributes:
        library: `nccl`, `gloo`, `xccl`, `hccl`, …; '' if missing.
        operation: Our name of the operation: `all_reduce`, `send`, …
        source: Rank of the sender within the group; -1 if missing.
        destination: Rank of the receiver within the group; -1 if missing.
    """

    library: str
    operation: str
    source: int = -1
    destination: int = -1

    @property
    def is_point_to_point(self) -> bool:
        """Whether the operation is a send or a receive."""
        return self.operation in MESSAGES


@lru_cache(maxsize=4_096)
def parse_profiling_name(profiling_name: str) -> ProfilingName:
    """Parse a profiling name, also of an unknown library."""
    library, colon, name = profiling_name.partition(":")
    if not colon:
        library, name = "", profiling_name
    sent, received = _SENT.match(name), _RECEIVED.match(name)
    if sent is not None:
        return ProfilingName(library, SEND, int(sent[1]), int(sent[2]))
    if received is not None:
        return ProfilingName(library, RECV, int(received[2]), int(received[1]))
    word = name.split(" ", 1)[0]
    return ProfilingName(library, operation_named(word) or "unknown")


def is_described_by_outputs(operation: str) -> bool:
    """Return whether only the outputs describe the call on every rank: some ranks have no inputs."""
    return operation in _DESCRIBED_BY_OUTPUTS


def dtype_name(recorded: str) -> str:
    """Return torch's name of a dtype: `float32` for `Float`."""
    return _DTYPES.get(recorded, recorded)


def recorded_dtype(name: str) -> str:
    """Return the recorder's name of a dtype: `Float` for `float32`."""
    return _RECORDED_DTYPES.get(name, name)


_LIBRARIES: Final = frozenset({"nccl", "ncclx", "xccl", "gloo", "rccl", "rcclx", "mccl", "hccl"})
"""Libraries that torch 2.13 accepts; 2.15 accepts any."""
_VARIANTS: Final = {"nccl2": "nccl", "nccl-lazy": "nccl"}
UNKNOWN_LIBRARY: Final = "gloo"
"""Recorded for backends that `torchfrtrace` does not accept."""


def recorded_operation(name: str) -> str | None:
    """Return the recorder's name of an operation: `_all_gather_base` for `all_gather_into_tensor`; None without one."""
    row = COLLECTIVES.get(name)
    return (row.recorded or None) if row is not None else None


def backend_on(configured: str, device: str) -> str:
    """Return the backend of a device type, for a group created with `gloo` or with `cpu:gloo,cuda:nccl`."""
    if ":" not in configured:
        return configured.lower()
    by_device = dict(part.split(":", 1) for part in configured.lower().split(",") if ":" in part)
    return by_device.get(device, next(iter(by_device.values()), ""))


def recorded_library(backend: str) -> str:
    """Return a library name for calls of a backend. `torchfrtrace` accepts only some names."""
    if backend in _LIBRARIES:
        return backend
    return _VARIANTS.get(backend, UNKNOWN_LIBRARY)
