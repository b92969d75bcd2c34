"""How many bytes an operation moves, and how bandwidth follows from them, as in NVIDIA's nccl-tests.

Source: `doc/PERFORMANCE.md` and the `GetBw` functions of https://github.com/NVIDIA/nccl-tests. There the *size* S of an
operation is that of the largest buffer that it has on any rank, algorithm bandwidth is S / t, and bus bandwidth is that
times a factor, so that it can be compared with what the hardware can do, whatever the number of ranks n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import SignatureName
from otel_torchdist.units import item_bytes


def _both_ways(n: int) -> float:
    return 2 * (n - 1) / n


def _one_way(n: int) -> float:
    return (n - 1) / n


def _once(_: int) -> float:
    return 1.0


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Traffic of an operation.

    Attributes:
        factor: Bus bandwidth divided by algorithm bandwidth, by the number of ranks.
        is_share: Whether what a rank contributes is its share of the whole, which is n times as large.
        all_know: Whether every rank's own record has the size, not only that of the root or sender.
    """

    factor: Callable[[int], float]
    is_share: bool = False
    all_know: bool = True


_TRAFFIC: Final = {
    "all_reduce": _Traffic(_both_ways),
    "all_gather": _Traffic(_one_way, is_share=True),
    "reduce_scatter": _Traffic(_one_way),
    "all_to_all": _Traffic(_one_way),
    "broadcast": _Traffic(_once, all_know=False),
    "reduce": _Traffic(_once),
    "gather": _Traffic(_one_way, is_share=True),
    "scatter": _Traffic(_one_way, all_know=False),
    "send": _Traffic(_once),
    "recv": _Traffic(_once, all_know=False),
}
_NO_DATA: Final = frozenset({"barrier", "monitored_barrier"})
_FORMS: Final = ("_into_tensor", "_tensor", "_single", "_base", "_coalesced")
"""Endings of forms of one collective that move the same bytes; a longer one comes before its own ending."""


def kind_of(operation: str) -> str:
    """Return which collective an operation is a form of: `all_gather` for `all_gather_into_tensor_coalesced`."""
    while (form := next(filter(operation.endswith, _FORMS), None)) is not None:
        operation = operation.removesuffix(form)
    return operation


def bus_factor(operation: str, members: int) -> float | None:
    """Return bus bandwidth divided by algorithm bandwidth; None if nccl-tests defines none for the operation."""
    traffic = _TRAFFIC.get(kind_of(operation))
    return traffic.factor(members) if traffic is not None and members > 0 else None


def size_of(view: OperationView) -> int | None:
    """Return the size of an operation in bytes, in the sense of nccl-tests.

    Args:
        view: The operation as one rank has recorded it.

    Returns:
        The same on all ranks, except for an `all_to_all` with uneven parts: there it is what this rank sends. 0 for
        what moves no data; None where the record does not have it.
    """
    kind = kind_of(view.name)
    traffic = _TRAFFIC.get(kind)
    if traffic is None:
        is_empty = kind in _NO_DATA or view.record.kind is RecordKind.RENDEZVOUS
        return 0 if is_empty else view.record.message_bytes or None
    members = len(view.group.members) if view.group is not None else 0
    contributed = view.record.message_bytes
    if not contributed and view.signature is not None and not view.signature.tensors:
        return None  # a profiler has not recorded what was passed
    if traffic.is_share:
        return contributed * members if members else None
    if traffic.all_know:
        return contributed
    described = described_bytes(view.signature)
    if described is None:
        return contributed or None
    return described * members if kind == "scatter" else described


def described_bytes(signature: SignatureName | None) -> int | None:
    """Return the bytes of the tensors that a signature describes; None if it does not describe all of them."""
    if signature is None or len(signature.shapes) != signature.tensors or not signature.dtypes:
        return None
    dtypes = signature.dtypes
    if len(dtypes) == 1:
        dtypes *= signature.tensors
    return sum(math.prod(shape) * item_bytes(dtype) for shape, dtype in zip(signature.shapes, dtypes, strict=False))
