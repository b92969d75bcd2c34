"""How much an `all_to_all` sends to each member: from numbers and shapes that the host has, never from a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_torchdist import guard
from otel_torchdist.capture.c10d.calls.signatures import MAX_SUMMED
from otel_torchdist.capture.torch_api import LIST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_torchdist.capture.c10d.calls.call import Plan
    from otel_torchdist.capture.c10d.calls.schemas import OperationSchema


def write_splits(plan: Plan, operation: OperationSchema, args: tuple[Any, ...], entered_ns: int, thread: int) -> bytes:
    """Write how a call is split if it is uneven; return the constant part of the call's own record, which follows."""
    try:
        given, output = args[operation.described], args[operation.received]
        if type(given) is LIST:
            found = _of_list(given, output)
        else:
            outgoing, incoming = args[operation.input_splits], args[operation.output_splits]
            if not outgoing and not incoming:
                return plan.tail
            found = _of_tensor(given, output, outgoing, incoming)
        if found is None:
            return plan.tail
        from otel_torchdist.tape.records.splits import pack_splits  # few programs exchange unevenly

        plan.tape.write_splits(pack_splits(entered_ns, thread, *found))
        return plan.tail_read
    except Exception as error:
        guard.report("split sizes", error)
        return plan.tail


def _of_tensor(
    given: Any, output: Any, outgoing: Sequence[int], incoming: Sequence[int]
) -> tuple[Sequence[int], int, int] | None:
    """Parts in rows, bytes of a row, and bytes received of an `all_to_all_single`; None if it is even.

    Without split sizes, all parts of that side are alike.
    """
    arriving = sum(incoming) if incoming else output.shape[0]
    parts = outgoing or [given.shape[0] // len(incoming)] * len(incoming)
    leaving = sum(parts)
    if leaving == arriving and parts.count(parts[0]) == len(parts):
        return None
    row = given.nbytes // leaving if leaving else output.nbytes // arriving
    return parts, row, arriving * row


def _of_list(given: Sequence[Any], output: Sequence[Any]) -> tuple[Sequence[int], int, int] | None:
    """The same of an `all_to_all` of lists; those of more than `MAX_SUMMED` tensors are taken to be even."""
    if not 0 < len(given) <= MAX_SUMMED:
        return None
    parts, unit = [tensor.numel() for tensor in given], given[0].itemsize
    received = sum([tensor.numel() for tensor in output])
    if received == sum(parts) and parts.count(parts[0]) == len(parts):
        return None
    return parts, unit, received * unit
