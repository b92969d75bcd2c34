"""Which operations leave the same outputs, bit by bit, on all members of a group: it depends on the backend.

Where a backend does not promise it, outputs that differ prove nothing, and are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from otel_torchdist.model.collectives import operations_where

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
    """Whether a backend promises that an operation leaves outputs of the same bits on all members."""
    if is_rocm and backend.startswith("nccl"):
        return False
    return operation in _PROMISED.get(backend, _NOTHING)
