"""Reads the GPUs through NVML, in a child process: a call can hang with the GPU, and cannot be interrupted.

Needs `pynvml` (the extra `nvml`). Imports neither torch nor OpenTelemetry.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from otel_torchdist.model.text import readable

MAX_GPUS: Final = 32
MAX_XIDS: Final = 64
"""Maximum errors per reading; a broken GPU can report thousands."""
SETTLE_S: Final = 0.2
"""Seconds to wait for more errors after the first, because errors come in groups."""
THROTTLE_REASONS: Final = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""Bits of NVML's clocks event reasons that slow a GPU down against the user's will; idle and user settings do not."""
_XID_EVENT: Final = 0x08
_UNCORRECTED, _VOLATILE = 1, 0
_NICE: Final = 10
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Gpu:
    """The state of a GPU.

    Attributes:
        uuid: `GPU-…`.
        is_lost: Whether the driver has lost the GPU.
        throttled: Reasons for reduced clocks; values of `THROTTLE_REASONS`.
        ecc_uncorrected: Number of uncorrected memory errors; None if the device or driver does not count them.
    """

    uuid: str
    is_lost: bool = False
    throttled: tuple[str, ...] = ()
    ecc_uncorrected: int | None = None


@dataclass(frozen=True, slots=True)
class Xid:
    """A GPU error reported by the driver.

    Attributes:
        uuid: UUID of the GPU.
        number: Xid of the error.
        at_ns: Monotonic time, which is the same in all processes of a node.
    """

    uuid: str
    number: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The state of all GPUs, and the errors since the last reading; or the reason why no GPU can be read."""

    gpus: tuple[Gpu, ...] = ()
    xids: tuple[Xid, ...] = ()
    problem: str = ""


class Nvml:
    """The GPUs of this machine or container."""

    def __init__(self, library: Any) -> None:
        """Find the GPUs, and subscribe to their errors.

        Args:
            library: The module `pynvml`.

        Raises:
            NVMLError: There is no driver.
        """
        self._library = library
        self._is_lost = False
        library.nvmlInit()
        handles = [self._ask("nvmlDeviceGetHandleByIndex", index) for index in range(library.nvmlDeviceGetCount())]
        named = ((self._text("nvmlDeviceGetUUID", handle), handle) for handle in handles[:MAX_GPUS])
        self._handles = {uuid: handle for uuid, handle in named if uuid}
        self._events = self._ask("nvmlEventSetCreate")
        for handle in self._handles.values() if self._events is not None else ():
            self._ask("nvmlDeviceRegisterEvents", handle, _XID_EVENT, self._events)

    def read(self) -> tuple[Gpu, ...]:
        """Read every GPU."""
        return tuple(self._read(uuid, handle) for uuid, handle in self._handles.items())

    def _read(self, uuid: str, handle: Any) -> Gpu:
        self._is_lost = False
        throttled = self._throttled(handle)
        errors = self._ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE)
        return Gpu(uuid, is_lost=True) if self._is_lost else Gpu(uuid, False, throttled, errors)

    def _throttled(self, handle: Any) -> tuple[str, ...]:
        # Renamed in the driver for CUDA 12.
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        name = next((name for name in names if hasattr(self._library, name)), names[0])
        bits = self._ask(name, handle) or 0
        return tuple(reason for bit, reason in THROTTLE_REASONS.items() if bits & bit)

    def xids(self, until_s: float) -> Iterator[Xid]:
        """Yield errors as they are reported, until a time of `time.monotonic`."""
        while (left_s := until_s - time.monotonic()) > 0:
            if self._events is None:
                time.sleep(left_s)
                return
            try:
                event = self._library.nvmlEventSetWait_v2(self._events, max(round(left_s * 1e3), 1))
            except self._library.NVMLError_Timeout:
                return
            except self._library.NVMLError:  # a GPU is lost: every call fails immediately
                time.sleep(max(until_s - time.monotonic(), 0))
                return
            uuid = self._text("nvmlDeviceGetUUID", event.device)
            if int(event.eventType) & _XID_EVENT and uuid:
                yield Xid(uuid, int(event.eventData), time.monotonic_ns())

    def _text(self, function: str, handle: Any) -> str:
        text = self._ask(function, handle)
        return readable(text.decode("utf-8", "replace") if isinstance(text, bytes) else text or "", 96)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Call NVML; return None if this GPU, driver or version of the module does not support the function."""
        library = self._library
        call: Callable[..., Any] | None = getattr(library, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except library.NVMLError_GpuIsLost:
            self._is_lost = True
        except library.NVMLError:
            pass
        return None


def main() -> None:
    """Write readings to standard output, one per line, at the interval given as argument, until the agent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the kernel kills this process when the agent ends
    os.nice(_NICE)
    interval_s = float(sys.argv[1])
    library = importlib.import_module("pynvml")
    try:
        nvml = Nvml(library)
    except library.NVMLError as error:
        _write(GpuReading(problem=str(error)))
        return
    xids: tuple[Xid, ...] = ()
    while True:
        due_s = time.monotonic() + interval_s
        _write(GpuReading(nvml.read(), xids))
        xids = tuple(_wait_for_xids(nvml, due_s))


def _wait_for_xids(nvml: Nvml, due_s: float) -> list[Xid]:
    """Wait for errors until `due_s`, but only `SETTLE_S` after the first: it may explain a death judged right now."""
    errors = list(itertools.islice(nvml.xids(due_s), 1))
    if errors:
        errors += itertools.islice(nvml.xids(time.monotonic() + SETTLE_S), MAX_XIDS - 1)
    return errors


def _write(reading: GpuReading) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reading) + b"\n")
    sys.stdout.buffer.flush()
