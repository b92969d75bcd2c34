"""The simulated device behind torch's own dispatcher: tensors that claim to be on CUDA, operations as NCCL runs them.

What an operation does on the device is simulated; all between the call and the tape is real, in Python or natively.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from otel_torchdist.capture.core.c10d.devices import peer_of_queue
from otel_torchdist.capture.core.c10d.native_kernels import NativeKernels
from otel_torchdist.capture.core.cuda.driver import DriverError
from otel_torchdist.capture.core.cuda.native_operations import NativeInbox
from otel_torchdist.capture.core.cuda.operations import CudaOperations
from otel_torchdist.capture.core.cuda.readings import SLOTS
from otel_torchdist.capture.session import Capture
from otel_torchdist.native.devices import CudaFunctions, NativeDevices, NativeWake
from tests.support.devices.simulated_device import Item, SimulatedDevice
from tests.support.ranks.rank import part_of

MAIN_STREAM, NCCL_STREAM = 7, 8
WATCHDOG_S: Final = 0.02
_REFUSED, _WITHOUT_WORK, _WITH_WORK = range(3)
_DEVICE_ERROR: Final = 719


@dataclass(eq=False)
class Ran:
    """An operation on the device.

    Attributes:
        name: Its name in c10d.
        kernel: Its work.
        is_reported: Whether the watchdog has reported its end.
    """

    name: str
    kernel: Item
    is_reported: bool = False


class SimulatedCuda:
    """Operations on a simulated device, recorded by this process's capture.

    Attributes:
        device: The device.
        ran: What has run on it, in order.
        waits_raise: Whether waits for operations raise.
        slots: How many results may be on their way to the host, for devices that have not been used yet.
    """

    def __init__(self, capture: Capture, library: Path) -> None:
        """Take the place of CUDA and NCCL in a process that has a default group.

        Args:
            capture: The capture of this process.
            library: See `simulated_library`.
        """
        self.device = SimulatedDevice()
        self.ran: list[Ran] = []
        self.refuses = False
        self.waits_raise = False
        self.slots = SLOTS
        self._library = ctypes.PyDLL(str(library))
        self._library.sim_tensor.restype = ctypes.py_object
        self._library.sim_tensor.argtypes = (ctypes.c_int, ctypes.c_int64)
        self._library.sim_watchdog.argtypes = (ctypes.c_uint64, ctypes.c_int)
        self._kept: list[Any] = [
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64)(self._issue),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)(self._wait),
        ]
        self._library.sim_begin(*self._kept)
        self.lasts_ns = 0
        inside: Any = capture
        for group in inside._groups.states():
            group.backend_on.names["cuda"] = "nccl"  # c10d has none to offer on a machine without a device
        inside._devices._begin_cuda = lambda: self._begin(part_of(capture, NativeKernels))
        self._stopping = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def tensor(self, device: int = 0, elements: int = 4) -> torch.Tensor:
        """A tensor on a device."""
        return self._library.sim_tensor(device, elements)

    def compute(self) -> None:
        """From now on tensors on devices can be computed with, but for whatever would have to wait for a device."""
        torch.cuda._lazy_init = lambda: None
        known: Any = torch._C
        names = {name for key in ("CPU", "CUDA") for name in known._dispatch_get_registrations_for_dispatch_key(key)}
        for name in (*names, "aten::copy_"):
            if name.startswith("aten::"):
                operation, _, overload = name.partition(".")
                self._library.sim_compute(operation.encode(), overload.encode())

    def on_device(self, host: torch.Tensor, device: int = 0) -> torch.Tensor:
        """A tensor of the host's as one on a device, with the same memory."""
        return torch.ops.simulated.on_device(host, device)

    def close(self) -> None:
        """Stop the watchdog."""
        self._stopping.set()

    def _begin(self, native: Any) -> CudaOperations:
        if native is None:
            return CudaOperations(self.device, self.device, slots=self.slots)
        devices = NativeDevices(native.library, self._functions(), 64, has_watchdog=True)
        inbox = NativeInbox(devices, native.plan_of, peer_of_queue, lambda code: self.device.failure)
        wake = NativeWake(native.library, devices)
        return CudaOperations(self.device, self.device, native=inbox, wake=wake)

    def _functions(self) -> CudaFunctions:
        """The device's calls with the signatures of the CUDA runtime."""
        device = self.device
        current = threading.local()

        def current_stream(index: int, stream: Any) -> None:
            stream[0] = device.stream_in_use()

        def is_capturing(stream: int, status: Any) -> None:
            status[0] = device.is_capturing(stream)

        def create_event(event: Any, flags: int) -> None:
            event[0] = device.create_event(getattr(current, "device", 0))

        def get_device(index: Any) -> None:
            index[0] = getattr(current, "device", 0)

        def set_device(index: int) -> None:
            current.device = index

        def record(event: int, stream: int | None) -> None:
            device.record(event, device.events[event].device, stream or 0)

        number, pointer = ctypes.c_int, ctypes.c_void_p
        numbers, pointers = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_void_p)
        made = {
            "current_stream": ctypes.CFUNCTYPE(number, number, pointers)(_answering(current_stream)),
            "is_capturing": ctypes.CFUNCTYPE(number, pointer, numbers)(_answering(is_capturing)),
            "create_event": ctypes.CFUNCTYPE(number, pointers, ctypes.c_uint)(_answering(create_event)),
            "record": ctypes.CFUNCTYPE(number, pointer, pointer)(_answering(record)),
            "get_device": ctypes.CFUNCTYPE(number, numbers)(_answering(get_device)),
            "set_device": ctypes.CFUNCTYPE(number, number)(_answering(set_device)),
            "last_error": ctypes.CFUNCTYPE(number)(lambda: _DEVICE_ERROR),
        }
        self._kept += made.values()
        return CudaFunctions(**{name: ctypes.cast(function, pointer) for name, function in made.items()})

    # --- the backend -----------------------------------------------------------------------------------------

    def _issue(self, operation: bytes, is_async: int, identity: int) -> int:
        name = operation.decode().removeprefix("c10d::")
        if self.refuses:
            self.ran.append(Ran(name, Item(0), is_reported=True))
            return _REFUSED
        is_elsewhere = bool(is_async) or name in ("send", "recv_")
        if not is_elsewhere:
            self.ran.append(Ran(name, self.device.launch(self.device.stream_in_use(), self.lasts_ns), is_reported=True))
            return _WITHOUT_WORK
        reached = self.device.launch(self.device.stream_in_use(), 0)
        self.ran.append(Ran(name, self.device.launch(NCCL_STREAM, self.lasts_ns, reached)))
        return _WITH_WORK

    def _wait(self, identity: int) -> int:
        if not self.waits_raise:
            self.device.wait_for(self.device.stream_in_use(), self.ran[identity - 1].kernel)
        return int(not self.waits_raise)

    def _watch(self) -> None:
        while not self._stopping.wait(WATCHDOG_S):
            for identity, one in enumerate(list(self.ran), 1):
                if not one.is_reported and self.device.is_over(one.kernel):
                    one.is_reported = True
                    self._library.sim_watchdog(identity, 0)

    def until_over(self) -> None:
        """Wait until the device has come to the end of all, and our poller after it."""
        while not all(one.is_reported and (one.kernel.end_ns or not one.kernel.enqueued_ns) for one in self.ran):
            time.sleep(WATCHDOG_S)
            for one in self.ran:
                self.device.is_over(one.kernel)


def _answering(call: Callable[..., None]) -> Callable[..., int]:
    """A call that answers with a code of the CUDA runtime."""

    def answer(*arguments: Any) -> int:
        try:
            call(*arguments)
        except DriverError:
            return _DEVICE_ERROR
        return 0

    return answer
