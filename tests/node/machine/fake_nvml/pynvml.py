"""Behaves like the module of `nvidia-ml-py` on a machine with two GPUs.

`FAKE_NVML` says what is wrong: `no_driver`; `hangs` (a call never returns, as if the GPU hung); `lost` (the second GPU
has fallen off the bus); `old` (a driver that knows little); `crash` (the library kills the process). `FAKE_NVML_XID` is
a file: when it exists, each of its lines is an error of the first GPU that is reported then, once.
"""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

UUIDS = ("GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000")
NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_TIMEOUT, NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 3, 10, 12, 15
_MODE = os.environ.get("FAKE_NVML", "")
_reads = {"count": 0}


class NVMLError(Exception):
    """An error, of the class of its number."""

    classes: ClassVar[dict[int, type]] = {}
    value: int

    def __new__(cls, value):
        """Make an error of the class for this number."""
        made = Exception.__new__(cls.classes.get(value, cls))
        made.value = value
        return made

    def __str__(self):
        """Describe it."""
        return {3: "Not Supported", 10: "Timeout", 12: "NVML Shared Library Not Found", 15: "GPU is lost"}[self.value]


class NVMLError_NotSupported(NVMLError):
    """Not by this device."""


class NVMLError_Timeout(NVMLError):
    """Nothing happened."""


class NVMLError_LibraryNotFound(NVMLError):
    """There is no driver."""


class NVMLError_GpuIsLost(NVMLError):
    """It has fallen off the bus."""


NVMLError.classes = {
    NVML_ERROR_NOT_SUPPORTED: NVMLError_NotSupported,
    NVML_ERROR_TIMEOUT: NVMLError_Timeout,
    NVML_ERROR_LIBRARY_NOT_FOUND: NVMLError_LibraryNotFound,
    NVML_ERROR_GPU_IS_LOST: NVMLError_GpuIsLost,
}


def nvmlInit():
    """Load the library."""
    if _MODE == "no_driver":
        raise NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND)


def nvmlDeviceGetCount():
    """Two GPUs."""
    return len(UUIDS)


def nvmlDeviceGetHandleByIndex(index):
    """The handle of a GPU."""
    return SimpleNamespace(index=index)


def nvmlDeviceGetUUID(handle):
    """Its UUID; older versions of the module give bytes."""
    return UUIDS[handle.index].encode() if _MODE == "old" else UUIDS[handle.index]


def _check(handle, since="any"):
    if _MODE == "lost" and handle.index == 1:
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    if _MODE == "old" and since == "new":
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlDeviceGetTotalEccErrors(handle, kind, counter):
    """Uncorrected errors; one more with each reading of both GPUs."""
    _check(handle, "new")
    assert (kind, counter) == (1, 0)
    return _reads["count"] // 2


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    """Idle, and a thermal slowdown of the hardware on the first one."""
    _check(handle)
    _reads["count"] += 1
    if _MODE == "hangs" and _reads["count"] > 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1000)
    if _MODE == "crash" and _reads["count"] > 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    return 0x41 if handle.index == 0 else 0x1


if _MODE != "old":
    nvmlDeviceGetCurrentClocksEventReasons = nvmlDeviceGetCurrentClocksThrottleReasons


def nvmlEventSetCreate():
    """A set of events."""
    return []


def nvmlDeviceRegisterEvents(handle, kinds, events):
    """Register a GPU."""
    _check(handle)
    assert kinds == 8
    events.append(handle)


def nvmlEventSetWait_v2(events, timeout_ms):
    """The next event of a registered GPU."""
    if _MODE == "lost":
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    file = Path(os.environ.get("FAKE_NVML_XID", "/nonexistent"))
    deadline = time.monotonic() + timeout_ms / 1e3
    while time.monotonic() < deadline:
        if file.exists():
            first, *rest = file.read_text().split()
            file.write_text("\n".join(rest)) if rest else file.unlink()
            return SimpleNamespace(device=events[0], eventType=8, eventData=int(first))
        time.sleep(0.01)
    raise NVMLError(NVML_ERROR_TIMEOUT)
