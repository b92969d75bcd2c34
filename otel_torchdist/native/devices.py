"""The library's operations on devices, as used by the polling thread."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, Final

from otel_torchdist.native.library import Library, NativeError

IS_ISSUED: Final = 1
IS_VOID: Final = 2
IS_ELSEWHERE: Final = 4
RESULT_SHIFT: Final = 8
RESULT_FAILED: Final = 100
"""Bits of `NativeDevices.state`, the shift of the watchdog's result in it (counted from 1), and the first result of a
failed watchdog (in the order of `FAILURES`); see source/devices.h."""

_TAKEN_AT_ONCE: Final = 256


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
        *(("session", ctypes.c_void_p), ("place", ctypes.c_uint32), ("kind", ctypes.c_uint32)),
        *(("device", ctypes.c_int32), ("peer", ctypes.c_int32), ("is_wait", ctypes.c_uint32)),
        ("spare", ctypes.c_uint32),
    )

    number: int
    entered_ns: int
    took_ns: int
    stream: int | None
    before: int
    after: int | None
    session: int | None
    place: int
    kind: int
    device: int
    peer: int
    is_wait: int


class NativeDevices:
    """The library's operations on the devices of this process.

    Attributes:
        handle: The library's handle.
        has_watchdog: Whether PyTorch reports the ends of asynchronous operations.
    """

    def __init__(self, library: Library, functions: CudaFunctions, most_events: int, has_watchdog: bool) -> None:
        """Initialize without operations.

        Args:
            library: The library.
            functions: The CUDA runtime.
            most_events: Maximum number of events per device.
            has_watchdog: See above.

        Raises:
            NativeError: The library could not allocate memory.
        """
        self._library = library
        self.handle: int = library.devices(ctypes.byref(functions), most_events) or 0
        self.has_watchdog = has_watchdog
        if not self.handle:
            raise NativeError("no memory for operations on devices")
        self._items = (DeviceItem * _TAKEN_AT_ONCE)()

    def take(self) -> list[DeviceItem]:
        """Return the items since the last call. They are valid until the next call."""
        count: int = self._library.devices_take(self.handle, self._items, _TAKEN_AT_ONCE)
        return self._items[:count]

    def state(self, place: int) -> int:
        """Return the state of an operation, as flags such as `IS_ISSUED`."""
        return self._library.devices_state(self.handle, place)

    def release(self, place: int) -> None:
        """Free the place of a completed operation, and its events."""
        self._library.devices_release(self.handle, place)

    def give_back(self, device: int, events: Iterable[int | None]) -> None:
        """Return events to the pool. Nobody may query them any more."""
        for event in events:
            self._library.devices_give_back(self.handle, device, event)

    def drain(self) -> list[int]:
        """Take all free events, to destroy them."""
        drained: list[int] = []
        events = (ctypes.c_void_p * _TAKEN_AT_ONCE)()
        while count := self._library.devices_drain(self.handle, events, _TAKEN_AT_ONCE):
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
