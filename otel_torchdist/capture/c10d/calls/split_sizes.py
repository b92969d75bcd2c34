"""How much an `all_to_all` sends to each member and expects from it.

From numbers and shapes that the host has, never from a tensor.
"""

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
) -> tuple[Sequence[int], int, int, Sequence[int]] | None:
    """Sent parts in rows, bytes of a row, bytes received, and expected parts of an `all_to_all_single`; None if even.

    Without split sizes, all parts of that side are alike.
    """
    members = len(outgoing or incoming)
    parts = outgoing or [given.shape[0] // members] * members
    expected = incoming or [output.shape[0] // members] * members
    leaving, arriving = sum(parts), sum(expected)
    if leaving == arriving and _are_alike(parts) and _are_alike(expected):
        return None
    row = given.nbytes // leaving if leaving else output.nbytes // arriving
    if output.nbytes != arriving * row:  # its rows are of another size
        expected = ()
    return parts, row, output.nbytes, expected


def _of_list(given: Sequence[Any], output: Sequence[Any]) -> tuple[Sequence[int], int, int, Sequence[int]] | None:
    """The same of an `all_to_all` of lists; those of more than `MAX_SUMMED` tensors are taken to be even."""
    if not 0 < len(given) <= MAX_SUMMED:
        return None
    parts, unit = [tensor.numel() for tensor in given], given[0].itemsize
    expected = [tensor.numel() for tensor in output]
    received = sum(expected)
    if received == sum(parts) and _are_alike(parts) and _are_alike(expected):
        return None
    return parts, unit, received * unit, expected


def gathers_alike(given: Sequence[Any], outputs: Sequence[Sequence[Any]]) -> bool:
    """Whether an `all_gather` expects from each member as much as it sends; lists of more than `MAX_SUMMED` do."""
    if len(given) != 1 or len(outputs) != 1:
        return False
    own, parts = given[0].numel(), outputs[0]
    return len(parts) > MAX_SUMMED or [part.numel() for part in parts].count(own) == len(parts)


def _are_alike(parts: Sequence[int]) -> bool:
    return parts.count(parts[0]) == len(parts)
