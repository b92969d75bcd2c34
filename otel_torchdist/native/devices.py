"""The library's operations on devices, as used by the polling thread."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, Final

from otel_torchdist.native.library import Library, NativeError

# `DeviceState` in source/devices.h.
IS_ISSUED: Final = 1
"""The event after the operation is recorded."""
IS_VOID: Final = 2
"""The backend refused the operation, or its end will not be observed."""
IS_ELSEWHERE: Final = 4
"""The operation runs on one of the backend's streams, and the watchdog reports its end."""
RESULT_SHIFT: Final = 8
"""Position of the watchdog's result in the state: 1 plus a `WorkResult`, or `RESULT_FAILED` plus an index."""
RESULT_FAILED: Final = 100
"""Result of a failed watchdog, plus the index of its exception in `FAILURES`."""

_BATCH: Final = 256


class CudaFunctions(ctypes.Structure):
    """Addresses of functions of the CUDA runtime; see source/devices.h."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            *("current_stream", "is_capturing", "create_event", "record"),
            *("get_device", "set_device", "last_error"),
        )
    )


class DeviceItem(ctypes.Structure):
    """An operation, or a stream's wait for an operation; see source/devices.h."""

    _fields_ = (
        *(("number", ctypes.c_uint64), ("entered_ns", ctypes.c_uint64), ("took_ns", ctypes.c_uint64)),
        *(("stream", ctypes.c_void_p), ("before", ctypes.c_void_p), ("after", ctypes.c_void_p)),
        *(("session", ctypes.c_void_p), ("slot", ctypes.c_uint32), ("kind", ctypes.c_uint32)),
        *(("device", ctypes.c_int32), ("peer", ctypes.c_int32), ("is_wait", ctypes.c_uint32)),
        ("is_timed", ctypes.c_uint32),
    )

    number: int
    entered_ns: int
    took_ns: int
    stream: int | None
    before: int
    after: int | None
    session: int | None
    slot: int
    kind: int
    device: int
    peer: int
    is_wait: int
    is_timed: int


class NativeDevices:
    """The library's operations on the devices of this process.

    Attributes:
        handle: The library's handle.
        has_watchdog: Whether PyTorch reports the ends of asynchronous operations.
    """

    def __init__(self, library: Library, functions: CudaFunctions, max_events: int, has_watchdog: bool) -> None:
        """Initialize without operations.

        Args:
            library: The library.
            functions: The CUDA runtime.
            max_events: Maximum number of events per device.
            has_watchdog: Whether PyTorch reports the ends of asynchronous operations.

        Raises:
            NativeError: The library could not allocate memory.
        """
        self._library = library
        self.handle: int = library.devices(ctypes.byref(functions), max_events) or 0
        self.has_watchdog = has_watchdog
        if not self.handle:
            raise NativeError("no memory for operations on devices")
        self._items = (DeviceItem * _BATCH)()

    def take(self) -> list[DeviceItem]:
        """Return the items since the last call. They are valid until the next call."""
        count: int = self._library.devices_take(self.handle, self._items, _BATCH)
        return self._items[:count]

    def state(self, slot: int) -> int:
        """Return the state of an operation, as flags such as `IS_ISSUED`."""
        return self._library.devices_state(self.handle, slot)

    def release(self, slot: int) -> None:
        """Free the slot of a completed operation, and its events."""
        self._library.devices_release(self.handle, slot)

    def give_back(self, device: int, events: Iterable[int | None]) -> None:
        """Return events to the pool. Nobody may query them any more."""
        for event in events:
            self._library.devices_give_back(self.handle, device, event)

    def drain(self) -> list[int]:
        """Take all free events, to destroy them."""
        drained: list[int] = []
        events = (ctypes.c_void_p * _BATCH)()
        while count := self._library.devices_drain(self.handle, events, _BATCH):
            drained += [event or 0 for event in events[:count]]
        return drained

    @property
    def failure(self) -> int:
        """The first error of a device; 0 for none."""
        return self._library.devices_failure(self.handle)

    def stop(self) -> None:
        """Stop recording operations on devices natively. Python records them."""
        self._library.devices_stop(self.handle)


class NativeWake:
    """An event like `threading.Event`. The thread waits in the library, where it is woken without the GIL."""

    def __init__(self, library: Library, devices: NativeDevices) -> None:
        """Initialize without a waiting thread."""
        self._library = library
        self._handle = devices.handle

    def set(self) -> None:
        """Wake the thread."""
        self._library.devices_wake(self._handle)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until woken, or for `timeout` seconds. Without a timeout, new items also end the wait."""
        self._library.devices_sleep(self._handle, -1 if timeout is None else int(timeout * 1e9))

    def clear(self) -> None:
        """Do nothing: each wake-up ends one wait."""


def address_of(library: Any, name: str) -> int:
    """Return the address of a function in a loaded library.

    Raises:
        NativeError: There is no such function.
    """
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except AttributeError as error:
        raise NativeError(f"the CUDA runtime has no {name}") from error
