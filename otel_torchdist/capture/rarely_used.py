"""Parts of a capture session that many ranks never use: imported only where they are, to save memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from otel_torchdist.capture.c10d.devices import DeviceOperations, Devices
    from otel_torchdist.capture.c10d.groups.groups import GroupState
    from otel_torchdist.capture.c10d.native_kernels import NativeKernels
    from otel_torchdist.capture.observers.choice import Observing
    from otel_torchdist.capture.observers.observed import ObservedCalls
    from otel_torchdist.capture.recorder import Recorder
    from otel_torchdist.capture.torch_api import Patches
    from otel_torchdist.native.library import Library


def native_kernels(library: Library | None) -> NativeKernels | None:
    """Kernels of the native library; None if calls are recorded in Python."""
    if library is None:
        return None
    from otel_torchdist.capture.c10d.native_kernels import NativeKernels

    return NativeKernels(library)


def cuda_operations(native: NativeKernels | None) -> DeviceOperations | None:
    """What times operations on CUDA devices; None, with a warning, where they cannot be followed."""
    from otel_torchdist.capture.cuda.operations import cuda_operations

    return cuda_operations(native)


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
    from otel_torchdist.capture.observers.observed import ObservedCalls

    return ObservedCalls(observing, meet, patches, current, devices.find_cuda)
