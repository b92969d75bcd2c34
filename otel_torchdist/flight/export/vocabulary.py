"""What PyTorch's flight recorder calls operations and libraries: `torchfrtrace` fails at any other name."""

from __future__ import annotations

from typing import Final

_SAME_NAME: Final = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"),
    *("all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced", "barrier", "new_window", "send", "recv"),
)
_OPERATIONS: Final = {
    **{name: name for name in _SAME_NAME},
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_gather_coalesced": "ALLGATHER_coalesced",  # torch 2.13 does not know `allgather_coalesced`
    "gather_into_tensor": "gather",
    # NCCL's recorder has one name for both, and torch 2.13 expects equal sizes from all ranks under the other.
    "all_to_all_single": "all_to_all",
    "monitored_barrier": "barrier",
}
"""By our names."""
_LIBRARIES: Final = frozenset({"nccl", "ncclx", "xccl", "gloo", "rccl", "rcclx", "mccl", "hccl"})
"""Those that torch 2.13 knows; 2.15 accepts any."""
_VARIANTS: Final = {"nccl2": "nccl", "nccl-lazy": "nccl"}
UNKNOWN_LIBRARY: Final = "gloo"


def recorded_operation(name: str) -> str | None:
    """The recorder's name of an operation: `_all_gather_base` for `all_gather_into_tensor`; None if it has none."""
    return _OPERATIONS.get(name)


def backend_on(configured: str, device: str) -> str:
    """The backend for a device type of a group that was created with `gloo`, or with `cpu:gloo,cuda:nccl`."""
    if ":" not in configured:
        return configured.lower()
    by_device = dict(part.split(":", 1) for part in configured.lower().split(",") if ":" in part)
    return by_device.get(device, next(iter(by_device.values()), ""))


def recorded_library(backend: str) -> str:
    """The library under which calls of a backend are recorded, so that `torchfrtrace` accepts them."""
    if backend in _LIBRARIES:
        return backend
    return _VARIANTS.get(backend, UNKNOWN_LIBRARY)
