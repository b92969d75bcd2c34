"""The backends of a process group: their names for each device type, and their timeouts.

A timeout is read from the backend's own options, which `set_timeout` changes too. NCCL reads its variables when a
group is created, and so do we: `TORCH_NCCL_BLOCKING_WAIT` outweighs `TORCH_NCCL_ASYNC_ERROR_HANDLING`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist import guard as _guard
from otel_torchdist.capture.core.torch_api import backend_and_store, backends_with_timeouts
from otel_torchdist.model.names import AtTimeout

if TYPE_CHECKING:
    from otel_torchdist.capture.core.torch_api import Patches


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


_ERROR_HANDLING: Final = {0: AtTimeout.NOTHING, 1: AtTimeout.ENDS, 2: AtTimeout.ABORTS, 3: AtTimeout.ENDS}
_BY_DEFAULT: Final = 3
_TRUE: Final = ("1", "Y", "YES", "T", "TRUE")
"""What torch takes for true in a variable, in capital letters."""


def at_timeout_of(configured: str) -> AtTimeout:
    """What the backends do at a timeout; unknown if they differ in that.

    Args:
        configured: As in torch's registry: `gloo`, or `cpu:gloo,cuda:nccl`.
    """
    names = {part.rpartition(":")[2].strip().lower() for part in configured.split(",")}
    return _at_timeout(names.pop()) if len(names) == 1 else AtTimeout.UNKNOWN


def _at_timeout(backend: str) -> AtTimeout:
    if backend == "gloo":
        return AtTimeout.RAISES
    if not backend.startswith("nccl"):
        return AtTimeout.UNKNOWN
    if _variable("NCCL_BLOCKING_WAIT").upper() in _TRUE:
        return AtTimeout.RAISES
    try:
        mode = int(_variable("NCCL_ASYNC_ERROR_HANDLING") or _BY_DEFAULT)
    except ValueError as error:  # torch refuses such a value
        guard.pass_on(error)
        return AtTimeout.UNKNOWN
    return _ERROR_HANDLING.get(mode, AtTimeout.UNKNOWN)


def _variable(name: str) -> str:
    """The value of a variable of NCCL's backend, which had no prefix up to torch 2.1; '' if it is not set."""
    return os.environ.get(f"TORCH_{name}") or os.environ.get(name, "")


def timeout_of(group: ProcessGroup, device: str = "") -> int:
    """The timeout of a group's operations in milliseconds; 0 if it is not known, or if its backends' differ.

    Args:
        group: The group.
        device: Device type, if the group has a backend of its own for each type; else ''.
    """
    found = {_timeout_on(group, device or str(one)) for one in _device_types(group)}
    return found.pop() if len(found) == 1 else 0


def _device_types(group: ProcessGroup) -> list[Any]:
    try:
        return list(group._device_types)
    except RuntimeError as error:
        guard.pass_on(error)
        return []


@guard.calls_plug_ins
def _timeout_on(group: ProcessGroup, device: str) -> int:
    try:
        backend: Any = group._get_backend(torch.device(device))
        timeout = backend.options._timeout
    except (AttributeError, RuntimeError, ValueError) as error:  # no such backend, or one without options
        guard.pass_on(error)
        return 0
    return milliseconds_of(timeout)


def milliseconds_of(timeout: object) -> int:
    """A timeout in whole milliseconds; 0 for none, or for what is not a timeout."""
    if not isinstance(timeout, timedelta):
        return 0
    return max(round(timeout.total_seconds() * 1e3), 0)


def follow_timeouts(patches: Patches, changed: Callable[[], None]) -> None:
    """Call a function after the timeout of some group has been changed.

    Torch 2.8 passes a new timeout to each backend, later versions to the group.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_timeout(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            with guard.guarded("timeout of a group"):
                changed()
            return result

        return set_timeout

    patches.replace(ProcessGroup, "set_timeout", make)
    for backend in backends_with_timeouts():
        patches.replace(backend, "_set_default_timeout", make)
