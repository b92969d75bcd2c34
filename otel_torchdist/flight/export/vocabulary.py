"""What PyTorch's flight recorder calls operations and libraries: `torchfrtrace` fails at any other name."""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.collectives import COLLECTIVES

_LIBRARIES: Final = frozenset({"nccl", "ncclx", "xccl", "gloo", "rccl", "rcclx", "mccl", "hccl"})
"""Those that torch 2.13 knows; 2.15 accepts any."""
_VARIANTS: Final = {"nccl2": "nccl", "nccl-lazy": "nccl"}
UNKNOWN_LIBRARY: Final = "gloo"


def recorded_operation(name: str) -> str | None:
    """The recorder's name of an operation: `_all_gather_base` for `all_gather_into_tensor`; None if it has none."""
    row = COLLECTIVES.get(name)
    return (row.recorded or None) if row is not None else None


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
