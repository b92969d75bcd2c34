"""How much an `all_to_all` sends to each member: from numbers and shapes that the host has, never from a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_torchdist import guard
from otel_torchdist.capture.c10d.signatures import MAX_SUMMED
from otel_torchdist.capture.torch_api import LIST
from otel_torchdist.tape.splits import pack_splits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_torchdist.capture.c10d.call import Plan
    from otel_torchdist.capture.c10d.schemas import OperationSchema


def write_splits(plan: Plan, operation: OperationSchema, args: tuple[Any, ...], entered_ns: int, thread: int) -> bytes:
    """Write how a call is split if it is uneven; return the constant part of the call's own record, which follows."""
    try:
        given, output = args[operation.described], args[operation.received]
        if type(given) is LIST:
            found = _of_list(given, output)
        else:
            found = _of_tensor(given, output, args[operation.input_splits], len(plan.group.name.ranks))
        if found is None:
            return plan.tail
        plan.tape.write_splits(pack_splits(entered_ns, thread, *found))
        return plan.tail_read
    except Exception as error:
        guard.report("split sizes", error)
        return plan.tail


def _of_tensor(given: Any, output: Any, parts: Sequence[int], members: int) -> tuple[Sequence[int], int, int] | None:
    """Parts, bytes in a unit, and bytes received of an `all_to_all_single`; None if it is even.

    Without split sizes all parts are alike, and its units are the rows of its input.
    """
    sent, received = given.numel() * given.itemsize, output.numel() * output.itemsize
    if sent == received and (not parts or parts.count(parts[0]) == len(parts)):
        return None
    rows = given.shape[0]
    return parts or [rows // members] * members, sent // rows if rows else 1, received


def _of_list(given: Sequence[Any], output: Sequence[Any]) -> tuple[Sequence[int], int, int] | None:
    """The same of an `all_to_all` of lists; those of more than `MAX_SUMMED` tensors are taken to be even."""
    if not 0 < len(given) <= MAX_SUMMED:
        return None
    parts, unit = [tensor.numel() for tensor in given], given[0].itemsize
    received = sum([tensor.numel() for tensor in output])
    if received == sum(parts) and parts.count(parts[0]) == len(parts):
        return None
    return parts, unit, received * unit
