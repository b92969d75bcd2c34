"""When a rank arrived at a call, and from when to when the call held it up, as far as its record shows that."""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.ends import BLOCKING, EXACT
from otel_torchdist.model.kinds import Flag, Phase
from otel_torchdist.model.operations import Operation

_ASYNC: Final = int(Flag.ASYNC)
_COALESCED: Final = int(Flag.COALESCED)
_ON_DEVICE: Final = int(Flag.ON_DEVICE)


def is_on_device(record: Operation) -> bool:
    """Whether a call ran on a device, in the order of its stream."""
    return bool(int(record.flags) & _ON_DEVICE)


def arrival_ns(record: Operation) -> int | None:
    """When a rank arrived at a call, as other ranks notice it; None if that is not known well."""
    flags = int(record.flags)
    if flags & _ON_DEVICE:
        return record.started_ns if record.started_how in EXACT else None
    return None if flags & _COALESCED else record.entered_ns


def hold_of(record: Operation) -> tuple[int, int] | None:
    """From when to when a call held its thread or device up; None if it did not, or if that is not known."""
    if record.completed_ns is None:
        return None
    flags = int(record.flags)
    if flags & _ON_DEVICE:
        is_seen = record.how in EXACT and not flags & _ASYNC
        return (record.started_ns, record.completed_ns) if is_seen and record.started_ns is not None else None
    if record.wait_entered_ns is not None:
        end_ns = record.completed_ns if record.wait_returned_ns is None else record.wait_returned_ns
        return (record.wait_entered_ns, end_ns) if end_ns >= record.wait_entered_ns else None
    # A synchronous collective is one wait from the call to the end.
    is_call = record.returned_ns is None and record.how in BLOCKING
    return (record.entered_ns, record.completed_ns) if is_call else None


def is_awaited_unseen(record: Operation) -> bool:
    """Whether torch itself waits for a call where that is not seen, as DDP does in C++ at the end of a backward."""
    is_async = bool(int(record.flags) & _ASYNC) and record.phase is not Phase.OUTSIDE_BACKWARD
    return is_async and record.returned_ns is not None and record.wait_entered_ns is None
