"""Which tensors are looked at, decided without reading them, and which outputs are the same on all members of a group.

Where a backend does not promise the same outputs bit by bit, outputs that differ prove nothing, and are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from otel_torchdist.capture.tensors.statistics import FLOAT8, FLOATING, is_dense
from otel_torchdist.model.collectives import operations_where
from otel_torchdist.model.numerics import Unseen

_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})
"""Subclasses may run code of their own for each function of torch."""
_COMPLEX: Final = frozenset({torch.complex32, torch.complex64, torch.complex128})


@dataclass(frozen=True, slots=True)
class Sorted:
    """The inputs of an operation.

    Attributes:
        described: Those that have statistics, all on the device of the first; complex ones as pairs of numbers.
        unseen: Why another one that may be infinite or not a number is left out; None if none is.
    """

    described: tuple[torch.Tensor, ...]
    unseen: Unseen | None


def sort(tensors: Sequence[torch.Tensor]) -> Sorted:
    """Sort inputs: integers and empty tensors are left out too, and have nothing that could be missed."""
    described: list[torch.Tensor] = []
    unseen: Unseen | None = None
    for tensor in tensors:
        if not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized) or not tensor.numel():
            continue
        reason = why_not(tensor)
        if reason is None and tensor.dtype in _COMPLEX:
            tensor = torch.view_as_real(tensor.detach())
        if reason is None and not _has_statistics(tensor):
            reason = Unseen.TYPE
        if reason is None and described and tensor.device != described[0].device:
            reason = Unseen.DEVICE
        if reason is None:
            described.append(tensor)
        unseen = unseen or reason
    return Sorted(tuple(described), unseen)


def _has_statistics(tensor: torch.Tensor) -> bool:
    return tensor.dtype in FLOATING or (tensor.dtype in FLOAT8 and tensor.is_cpu)


def why_not(tensor: torch.Tensor) -> Unseen | None:
    """Why the memory of a tensor cannot be read; None if it can."""
    if tensor.__class__ not in _PLAIN or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return Unseen.TYPE
    if tensor.layout is not torch.strided:
        return Unseen.LAYOUT
    if not (tensor.is_cpu or tensor.is_cuda):
        return Unseen.DEVICE
    if tensor.is_cuda and not is_dense(tensor):
        return Unseen.LAYOUT  # it would have to be copied, and there may be no memory for that
    return None


def why_no_checksum(tensors: Sequence[torch.Tensor]) -> Unseen | None:
    """Why outputs have no checksum; None if they have one."""
    for tensor in tensors:
        reason = why_not(tensor)
        if reason is None and tensor.device != tensors[0].device:
            reason = Unseen.DEVICE
        if reason is not None:
            return reason
    return None


REDUCED_TO_ALL: Final = operations_where(lambda row: row.family.name == "all_reduce")
COPIED_TO_ALL: Final = operations_where(lambda row: row.family.name in ("all_gather", "broadcast"))
MUST_BE_EQUAL: Final = REDUCED_TO_ALL | COPIED_TO_ALL
"""Operations whose outputs are meant to be equal on all members; of these, a backend may promise all bits."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What is known of backends.

    Attributes:
        backends: Their names, as they report them.
        operations: Operations whose outputs are compared.
        reason: Why they may be, or why not.
    """

    backends: tuple[str, ...]
    operations: frozenset[str]
    reason: str


PROMISES: Final = (
    Promise(
        ("nccl", "nccl2", "nccl-lazy", "nccl-legacy"),
        MUST_BE_EQUAL,
        "its maintainers: all ranks get the same value, always (nccl#855)",
    ),
    Promise(("gloo",), MUST_BE_EQUAL, "tried with 2 to 5 ranks, 4 types and up to 1,000,003 elements"),
    Promise(("mpi", "ucc", "xccl", "hccl"), frozenset(), "not known"),
    Promise(("fake",), frozenset(), "it does not communicate"),
)
"""A backend that is not listed promises nothing. With ROCm, `nccl` is RCCL, of which it is not known either."""

_PROMISED: Final = {backend: promise.operations for promise in PROMISES for backend in promise.backends}
_IS_ROCM: Final = torch.version.hip is not None
_NOTHING: Final[frozenset[str]] = frozenset()


def makes_equal(operation: str, backend: str, is_rocm: bool = _IS_ROCM) -> bool:
    """Return whether a backend promises that an operation leaves outputs of the same bits on all members."""
    if is_rocm and backend.startswith("nccl"):
        return False
    return operation in _PROMISED.get(backend, _NOTHING)
