"""When the backend itself ends a wait, and how: after its group's timeout.

Times count as the backends count them. NCCL's watchdogs count from when an operation was enqueued. gloo's collectives
count from the call, wherever they are waited for, and its messages from the wait. The creation of a group obeys other
timeouts, those of the store among them, so nothing is known about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import AtTimeout, GroupName
from otel_torchdist.model.snapshot import WorldSnapshot

EARLY_NS: Final = 50_000_000
"""A backend may count from a moment before the call was recorded."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The first end of a wait by its backend, as far as the ranks that wait show.

    Attributes:
        rank: The rank that waits there.
        backend: Its backend: `gloo`, or `NCCL`.
        at_timeout: What the backend does; never `UNKNOWN`.
        timeout_ns: The timeout.
        at_ns: When it has passed, in monotonic time.
    """

    rank: int
    backend: str
    at_timeout: AtTimeout
    timeout_ns: int
    at_ns: int


def first_deadline(world: WorldSnapshot, waits: Mapping[int, OperationView]) -> Deadline | None:
    """The earliest deadline of operations that are open on living ranks; None if none is known.

    Args:
        world: The snapshot.
        waits: The operations, by rank.
    """
    living = [_deadline(rank, operation) for rank, operation in waits.items() if world.ranks[rank].alive]
    known = [deadline for deadline in living if deadline is not None]
    ending = [deadline for deadline in known if ends_waits(deadline.at_timeout)]
    return min(ending or known, key=lambda deadline: (deadline.at_ns, deadline.rank), default=None)


def _deadline(rank: int, operation: OperationView) -> Deadline | None:
    name, record = known_timeout(operation), operation.record
    if name is None or record.completed_ns is not None:
        return None
    backend, since_ns = backend_of(name), record.entered_ns
    if backend == "gloo" and operation.operation_id.channel.is_point_to_point:
        if operation.waiting_since_ns is None:
            return None
        since_ns = operation.waiting_since_ns
    timeout_ns = name.timeout_ms * 1_000_000
    return Deadline(rank, backend, name.at_timeout, timeout_ns, since_ns + timeout_ns)


def known_timeout(operation: OperationView) -> GroupName | None:
    """The group of an operation, if its timeout is known and applies to it."""
    group = operation.group
    if group is None or operation.record.kind is not RecordKind.OPERATION:
        return None
    name = group.name
    return name if name.timeout_ms and name.at_timeout is not AtTimeout.UNKNOWN else None


def ends_waits(at_timeout: AtTimeout) -> bool:
    """Return whether a backend is known to end waits at its timeout."""
    match at_timeout:
        case AtTimeout.RAISES | AtTimeout.ENDS | AtTimeout.ABORTS:
            return True
        case AtTimeout.NOTHING | AtTimeout.UNKNOWN:
            return False


def backend_of(name: GroupName) -> str:
    """The backend whose timeout is known, as people call it."""
    return "NCCL" if "nccl" in name.backend.lower() else "gloo"


def timeout_passed(operation: OperationView, ended_ns: int | None) -> bool:
    """Whether a wait that ended at a moment had lasted as long as its backend waits, if that is known."""
    name = known_timeout(operation)
    if name is None or ended_ns is None or not ends_waits(name.at_timeout):
        return False
    return ended_ns - operation.record.entered_ns >= name.timeout_ms * 1_000_000 - EARLY_NS
