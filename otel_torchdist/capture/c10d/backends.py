"""Names of a process group's backends, as they report them, for each device type."""

from __future__ import annotations

import weakref

import torch
from torch.distributed import ProcessGroup

from otel_torchdist import guard as _guard
from otel_torchdist.capture.torch_api import backend_and_store


class Backends:
    """Names of a group's backends. References the group only weakly, so that no cycle keeps the tape alive.

    Attributes:
        names: Names looked up so far, by device type.
    """

    def __init__(self, reference: weakref.ref[ProcessGroup]) -> None:
        self._reference = reference
        self.names: dict[str, str] = {}

    def __call__(self, device: str) -> str:
        """The name of the backend for a device type; '' if the group has none."""
        known = self.names.get(device, "")
        group = None if known else self._reference()
        if group is not None:
            known = self.names[device] = backend_name(group, device)
        return known


def has_several_backends(group: ProcessGroup) -> bool:
    """Whether a group has different backends for different device types."""
    try:
        backends = [group._get_backend(device) for device in group._device_types]
    except (RuntimeError, ValueError) as error:
        _guard.pass_on(error)
        return False
    return len({id(backend) for backend in backends}) > 1


@_guard.calls_plug_ins
def backend_name(group: ProcessGroup, device: str) -> str:
    """`gloo`, `nccl`, … for a device type; '' if the group has no backend for it."""
    try:
        backend = group._get_backend(torch.device(device))
    except (RuntimeError, ValueError) as error:
        _guard.pass_on(error)
        return ""
    try:
        return str(backend.name())
    except RuntimeError as error:  # torch 2.8's fake backend has no name
        _guard.pass_on(error)
        configured = configured_backend(group)  # `gloo`, or `cpu:gloo,cuda:fake`
        by_device = dict(part.split(":", 1) for part in configured.split(",") if ":" in part)
        return by_device.get(device, configured)


def configured_backend(group: ProcessGroup) -> str:
    """The backend with which a group was created: `gloo`, or `cpu:gloo,cuda:nccl`."""
    return str(backend_and_store(group)[0])
