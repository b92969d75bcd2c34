"""The backends of a process group: their names for each device type, and their timeouts.

Timeouts are read from the backend's options, which `set_timeout` changes, too. NCCL reads its variables when a group is
created, and so do we. `TORCH_NCCL_BLOCKING_WAIT` takes precedence over `TORCH_NCCL_ASYNC_ERROR_HANDLING`.
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
from otel_torchdist.capture.core.torch_api import backend_and_store, backends_with_timeouts
from otel_torchdist.capture.upstream import core
from otel_torchdist.model.names import AtTimeout

if TYPE_CHECKING:
    from otel_torchdist.capture.core.torch_api import Patches


class Backends:
    """The names of a group's backends. Holds a weak reference to the group, so that no cycle keeps the tape alive.

    Attributes:
        names: Cached names, by device type.
    """

    def __init__(self, reference: weakref.ref[ProcessGroup]) -> None:
        self._reference = reference
        self.names: dict[str, str] = {}

    def __call__(self, device: str) -> str:
        """Return the name of the backend for a device type; '' if the group has none."""
        name = self.names.get(device, "")
        group = None if name else self._reference()
        if group is not None:
            name = self.names[device] = backend_name(group, device)
        return name


def has_several_backends(group: ProcessGroup) -> bool:
    """Return whether a group has different backends for different device types."""
    try:
        get_backend: Any = core.GET_BACKEND.of(group)
        if get_backend is None:
            return False
        device_types: Any = core.DEVICE_TYPES.of(group, ())
        backends = [get_backend(device) for device in device_types]
    except (RuntimeError, ValueError) as error:
        guard.pass_on(error)
        return False
    return len({id(backend) for backend in backends}) > 1


@guard.calls_plug_ins
def backend_name(group: ProcessGroup, device: str) -> str:
    """Return the backend for a device type, such as `gloo`, or '' if the group has none for it."""
    try:
        get_backend = core.GET_BACKEND.of(group)
        if get_backend is None:
            return _configured_on(group, device)
        backend = get_backend(torch.device(device))
    except (RuntimeError, ValueError) as error:
        guard.pass_on(error)
        return ""
    try:
        return str(backend.name())
    except RuntimeError as error:  # torch 2.8's fake backend has no name
        guard.pass_on(error)
        return _configured_on(group, device)


def _configured_on(group: ProcessGroup, device: str) -> str:
    configured = configured_backend(group)  # `gloo`, or `cpu:gloo,cuda:fake`
    by_device = dict(part.split(":", 1) for part in configured.split(",") if ":" in part)
    return by_device.get(device, configured)


def configured_backend(group: ProcessGroup) -> str:
    """Return the backend with which a group was created: `gloo`, or `cpu:gloo,cuda:nccl`."""
    return str(backend_and_store(group)[0])


_ERROR_HANDLING: Final = {0: AtTimeout.NOTHING, 1: AtTimeout.ENDS, 2: AtTimeout.ABORTS, 3: AtTimeout.ENDS}
_DEFAULT_MODE: Final = 3
_TRUE: Final = ("1", "Y", "YES", "T", "TRUE")
"""Values of variables that torch reads as true, in upper case."""


def at_timeout_of(configured: str) -> AtTimeout:
    """Return what the backends do at a timeout; `UNKNOWN` if they differ.

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
        mode = int(_variable("NCCL_ASYNC_ERROR_HANDLING") or _DEFAULT_MODE)
    except ValueError as error:  # torch rejects such a value
        guard.pass_on(error)
        return AtTimeout.UNKNOWN
    return _ERROR_HANDLING.get(mode, AtTimeout.UNKNOWN)


def _variable(name: str) -> str:
    """Return the value of a variable of torch's NCCL backend, or ''. Up to torch 2.1, the names have no prefix."""
    return os.environ.get(f"TORCH_{name}") or os.environ.get(name, "")


def timeout_of(group: ProcessGroup, device: str = "") -> int:
    """Return the timeout of a group's operations in milliseconds; 0 if unknown, or if its backends' timeouts differ.

    Args:
        group: The group.
        device: Device type, if the group has a separate backend for each type; else ''.
    """
    timeouts = {_timeout_on(group, device or str(device_type)) for device_type in _device_types(group)}
    return timeouts.pop() if len(timeouts) == 1 else 0


def _device_types(group: ProcessGroup) -> list[Any]:
    try:
        return list(core.DEVICE_TYPES.of(group, ()))
    except RuntimeError as error:
        guard.pass_on(error)
        return []


@guard.calls_plug_ins
def _timeout_on(group: ProcessGroup, device: str) -> int:
    try:
        get_backend: Any = core.GET_BACKEND.of(group)
        if get_backend is None:
            return 0
        timeout = getattr(get_backend(torch.device(device)).options, core.BACKEND_TIMEOUT.name)
    except (AttributeError, RuntimeError, ValueError) as error:  # no such backend, or a backend without options
        guard.pass_on(error)
        return 0
    return milliseconds_of(timeout)


def milliseconds_of(timeout: object) -> int:
    """Convert a timeout to whole milliseconds; 0 for other types."""
    if not isinstance(timeout, timedelta):
        return 0
    return max(round(timeout.total_seconds() * 1e3), 0)


def follow_timeouts(patches: Patches, changed: Callable[[], None]) -> None:
    """Call a function after the timeout of any group has changed.

    torch 2.8 passes a new timeout to each backend, later versions to the group.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_timeout(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            with guard.guarded("timeout of a group"):
                changed()
            return result

        return set_timeout

    patches.replace(ProcessGroup, core.SET_GROUP_TIMEOUT, make)
    for backend in backends_with_timeouts():
        patches.replace(backend, core.SET_TIMEOUT, make)
