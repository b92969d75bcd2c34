"""Session parts that many ranks never use. They are imported on demand, to save memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from otel_torchdist import guard
from otel_torchdist.capture.core.part import SessionPart

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from otel_torchdist.capture.core.c10d.devices import DeviceOperations, Devices
    from otel_torchdist.capture.core.c10d.hot_path import HotPath
    from otel_torchdist.capture.core.c10d.native_kernels import NativeKernels
    from otel_torchdist.capture.core.c10d.standalone_backends import StandaloneBackends
    from otel_torchdist.capture.core.groups.groups import GroupState
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches
    from otel_torchdist.capture.parts.ray_training import RayTraining
    from otel_torchdist.capture.tensors.choice import Observers
    from otel_torchdist.capture.tensors.observed import ObservedCalls
    from otel_torchdist.native.library import Library


def native_kernels(library: Library | None) -> NativeKernels | None:
    """Return the kernels of the native library, or None to record in Python."""
    if library is None:
        return None
    from otel_torchdist.capture.core.c10d.native_kernels import NativeKernels

    return NativeKernels(library)


def cuda_operations(native: NativeKernels | None) -> DeviceOperations | None:
    """Return the follower of CUDA operations, or None with a warning if they cannot be followed."""
    from otel_torchdist.capture.core.cuda.operations import cuda_operations

    return cuda_operations(native)


def ray_training(failed: Callable[[BaseException], object]) -> RayTraining | None:
    """Return the recorder of exceptions of training functions, or None in a process that is no worker of Ray."""
    if "ray" not in sys.modules:
        return None
    from otel_torchdist.capture.parts.ray_training import RayTraining

    return RayTraining(failed)


class StandaloneBackendCreation(SessionPart):
    """Recorder of backends that the program creates itself. torch creates others, for groups and RPC."""

    def __init__(self, hot_path: HotPath) -> None:
        """Initialize without hooks. `hot_path` records the calls."""
        self._hot_path = hot_path
        self._backends: StandaloneBackends | None = None

    def hook(self, patches: Patches) -> None:
        """Patch the constructor of gloo backends."""

        def make_init(original: Callable[..., Any]) -> Callable[..., Any]:
            def init(backend: Any, *args: Any, **kwargs: Any) -> None:
                original(backend, *args, **kwargs)
                with guard.guarded("a backend's creation"):
                    caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # `inspect` uses it, too
                    if not str(caller.f_globals.get("__name__")).startswith("torch."):
                        store = kwargs["store"] if "store" in kwargs else args[0]
                        self._backends_with_hooks(patches).add(backend, store)

            return init

        backend_class = getattr(torch.distributed, "ProcessGroupGloo", None)  # missing in builds without gloo
        if backend_class is not None:
            patches.replace(backend_class, "__init__", make_init)

    def _backends_with_hooks(self, patches: Patches) -> StandaloneBackends:
        if self._backends is None:
            from otel_torchdist.capture.core.c10d.standalone_backends import StandaloneBackends

            self._backends = StandaloneBackends(self._hot_path)
            self._backends.hook(patches)
        return self._backends


def observed_calls(
    observers: Observers | None,
    find_group: Callable[[ProcessGroup], GroupState | None],
    patches: Patches,
    current_recorder: Callable[[], Recorder | None],
    devices: Devices,
) -> ObservedCalls | None:
    """Return the session part that calls observers of tensors, or None without observers."""
    if observers is None:
        return None
    from otel_torchdist.capture.tensors.observed import ObservedCalls

    return ObservedCalls(observers, find_group, patches, current_recorder, devices.find_cuda)
