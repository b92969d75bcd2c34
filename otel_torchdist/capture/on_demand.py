"""Parts of a capture session that many ranks never use: imported only where they are, to save memory."""

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
    from otel_torchdist.capture.core.c10d.lone_backends import LoneBackends
    from otel_torchdist.capture.core.c10d.native_kernels import NativeKernels
    from otel_torchdist.capture.core.groups.groups import GroupState
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches
    from otel_torchdist.capture.tensors.choice import Observing
    from otel_torchdist.capture.tensors.observed import ObservedCalls
    from otel_torchdist.native.library import Library


def native_kernels(library: Library | None) -> NativeKernels | None:
    """Kernels of the native library; None if calls are recorded in Python."""
    if library is None:
        return None
    from otel_torchdist.capture.core.c10d.native_kernels import NativeKernels

    return NativeKernels(library)


def cuda_operations(native: NativeKernels | None) -> DeviceOperations | None:
    """What times operations on CUDA devices; None, with a warning, where they cannot be followed."""
    from otel_torchdist.capture.core.cuda.operations import cuda_operations

    return cuda_operations(native)


class LoneBackendCreation(SessionPart):
    """Records the calls of backends that the program makes itself; torch makes others, for groups and remote calls."""

    def __init__(self, hot_path: HotPath) -> None:
        """Follow nothing until `hook`; `hot_path` records the calls."""
        self._hot_path = hot_path
        self._backends: LoneBackends | None = None

    def hook(self, patches: Patches) -> None:
        """Wait for the first one."""

        def make_init(original: Callable[..., Any]) -> Callable[..., Any]:
            def init(backend: Any, *args: Any, **kwargs: Any) -> None:
                original(backend, *args, **kwargs)
                with guard.guarded("a backend's creation"):
                    caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # what `inspect` would call
                    if not str(caller.f_globals.get("__name__")).startswith("torch."):
                        store = kwargs["store"] if "store" in kwargs else args[0]
                        self._follow(patches).add(backend, store)

            return init

        made_class = getattr(torch.distributed, "ProcessGroupGloo", None)  # there are builds without gloo
        if made_class is not None:
            patches.replace(made_class, "__init__", make_init)

    def _follow(self, patches: Patches) -> LoneBackends:
        if self._backends is None:
            from otel_torchdist.capture.core.c10d.lone_backends import LoneBackends

            self._backends = LoneBackends(self._hot_path)
            self._backends.hook(patches)
        return self._backends


def observed_calls(
    observing: Observing | None,
    meet: Callable[[ProcessGroup], GroupState | None],
    patches: Patches,
    current: Callable[[], Recorder | None],
    devices: Devices,
) -> ObservedCalls | None:
    """What looks at the tensors of operations; None for nothing."""
    if observing is None:
        return None
    from otel_torchdist.capture.tensors.observed import ObservedCalls

    return ObservedCalls(observing, meet, patches, current, devices.find_cuda)
