"""A dump of PyTorch's flight recorder, as one rank has written it.

The format is that of `torch/csrc/distributed/c10d/FlightRecorder.hpp`; versions 2.3 to 2.10 differ in optional keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from otel_torchdist.model.names import CallSiteName


class EntryState(Enum):
    """How far the recorder has seen an operation come.

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
    """How far one rank has come in a group, by sequence number; -1 for nothing yet, or not recorded."""

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
