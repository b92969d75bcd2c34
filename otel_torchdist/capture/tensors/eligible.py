"""Selects the tensors that can be examined, without reading them, and the outputs that can be compared.

Outputs are only compared if the backend promises bitwise equality on all members. Otherwise a difference proves
nothing.
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
"""Classes of tensors that are read. Subclasses may run custom code in each torch function."""
_COMPLEX: Final = frozenset({torch.complex32, torch.complex64, torch.complex128})


@dataclass(frozen=True, slots=True)
class SelectedInputs:
    """The selected inputs of an operation.

    Attributes:
        described: Inputs with statistics, on one device. Complex tensors are viewed as pairs of real numbers.
        unseen: Why another input that may be non-finite was left out; None if all were selected.
    """

    described: tuple[torch.Tensor, ...]
    unseen: Unseen | None


def select_inputs(tensors: Sequence[torch.Tensor]) -> SelectedInputs:
    """Select the inputs that can be examined. Integers and empty tensors are always finite, and are skipped."""
    described: list[torch.Tensor] = []
    unseen: Unseen | None = None
    for tensor in tensors:
        if not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized) or not tensor.numel():
            continue
        reason = why_unreadable(tensor)
        if reason is None and tensor.dtype in _COMPLEX:
            tensor = torch.view_as_real(tensor.detach())
        if reason is None and not _has_statistics(tensor):
            reason = Unseen.TYPE
        if reason is None and described and tensor.device != described[0].device:
            reason = Unseen.DEVICE
        if reason is None:
            described.append(tensor)
        unseen = unseen or reason
    return SelectedInputs(tuple(described), unseen)


def _has_statistics(tensor: torch.Tensor) -> bool:
    return tensor.dtype in FLOATING or (tensor.dtype in FLOAT8 and tensor.is_cpu)


def why_unreadable(tensor: torch.Tensor) -> Unseen | None:
    """Return why the memory of a tensor cannot be read, or None."""
    if tensor.__class__ not in _PLAIN or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return Unseen.TYPE
    if tensor.layout is not torch.strided:
        return Unseen.LAYOUT
    if not (tensor.is_cpu or tensor.is_cuda):
        return Unseen.DEVICE
    if tensor.is_cuda and not is_dense(tensor):
        return Unseen.LAYOUT  # a copy may not fit into memory
    return None


def why_no_checksum(tensors: Sequence[torch.Tensor]) -> Unseen | None:
    """Return why outputs have no checksum, or None."""
    for tensor in tensors:
        reason = why_unreadable(tensor)
        if reason is None and tensor.device != tensors[0].device:
            reason = Unseen.DEVICE
        if reason is not None:
            return reason
    return None


REDUCED_TO_ALL: Final = operations_where(lambda row: row.family.name == "all_reduce")
COPIED_TO_ALL: Final = operations_where(lambda row: row.family.name in ("all_gather", "broadcast"))
MUST_BE_EQUAL: Final = REDUCED_TO_ALL | COPIED_TO_ALL
"""Operations whose outputs should be equal on all members. A backend may promise bitwise equality."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise of backends about bitwise equality.

    Attributes:
        backends: Names that the backends report.
        operations: Operations whose outputs are compared.
        reason: Evidence for the promise, or why there is none.
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
"""An unlisted backend promises nothing, nor does RCCL, which ROCm calls `nccl`."""

_PROMISED: Final = {backend: promise.operations for promise in PROMISES for backend in promise.backends}
_IS_ROCM: Final = torch.version.hip is not None
_NO_OPERATIONS: Final[frozenset[str]] = frozenset()


def makes_equal(operation: str, backend: str, is_rocm: bool = _IS_ROCM) -> bool:
    """Return whether a backend promises bitwise equal outputs of an operation on all members."""
    if is_rocm and backend.startswith("nccl"):
        return False
    return operation in _PROMISED.get(backend, _NO_OPERATIONS)
