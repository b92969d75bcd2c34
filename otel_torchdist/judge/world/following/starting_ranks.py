"""Detects ranks that a rank has started itself, and which do not run yet.

Lightning's rank 0 starts the program again for each further rank of its node, and calls `init_process_group` at once.
The others import the program first, which takes them longer than the stall threshold if the file system is slow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.operations import Operation
from otel_torchdist.node.processes.children import children_of
from otel_torchdist.node.processes.state import belongs_to
from otel_torchdist.tape.identity import TapeIdentity, process_start_ticks, shares_pids

PATIENCE_NS: Final = 60_000_000_000
"""Time in ns for which a rank may wait in the creation of its group for ranks that it has started."""
_LOCAL_RANK: Final = b"LOCAL_RANK="
_MAX_ENVIRONMENT: Final = 1 << 20


def patience_ns(operation: Operation, identity: TapeIdentity, owner: int) -> int:
    """Return the time to tolerate in an open operation because its rank has started other ranks; 0 for others.

    Args:
        operation: An operation that has just been entered.
        identity: Identity of the rank's tape.
        owner: Owner of the tape. Other users could forge the pid, to learn about another user's processes.
    """
    if operation.kind is not RecordKind.RENDEZVOUS or not shares_pids(identity):
        return 0
    pid = identity.pid
    if not belongs_to(pid, owner) or process_start_ticks(pid) != identity.pid_start_ticks:
        return 0
    own = _local_rank(pid)
    numbers = (_local_rank(child) for child in children_of(pid) if belongs_to(child, owner))
    return PATIENCE_NS if any(number and number != own for number in numbers) else 0


def _local_rank(pid: int) -> bytes:
    """Return the local rank with which a process was started, such as `LOCAL_RANK=1`; empty if without one.

    A forked child, and a program that a rank of torchrun starts, have their parent's.
    """
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as stream:
            variables = stream.read(_MAX_ENVIRONMENT).split(b"\0")
    except OSError:
        return b""
    return next((variable for variable in variables if variable.startswith(_LOCAL_RANK)), b"")
