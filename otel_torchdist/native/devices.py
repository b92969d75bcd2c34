"""Operations that the library follows on devices, as the thread that polls the devices sees them."""

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
"""Bits of `NativeDevices.state`, the shift of the watchdog's result in it, which counts from 1, and the first of the
results of a watchdog that has failed itself, in the order of `FAILURES`; see source/devices.h."""

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
    """An operation, or a stream's wait for one; see source/devices.h."""

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
    """The operations that the library follows on the devices of this process.

    Attributes:
        handle: The library's handle of it.
        has_watchdog: Whether PyTorch reports how asynchronous operations end.
    """

    def __init__(self, library: Library, functions: CudaFunctions, most_events: int, has_watchdog: bool) -> None:
        """Begin with nothing in flight.

        Args:
            library: The library.
            functions: The CUDA runtime.
            most_events: Maximum number of events per device.
            has_watchdog: See above.

        Raises:
            NativeError: There is no memory.
        """
        self._library = library
        self.handle: int = library.devices(ctypes.byref(functions), most_events) or 0
        self.has_watchdog = has_watchdog
        if not self.handle:
            raise NativeError("no memory for operations on devices")
        self._items = (DeviceItem * _TAKEN_AT_ONCE)()

    def take(self) -> list[DeviceItem]:
        """Return the items handed over since the last call; they are valid until the next call."""
        count: int = self._library.devices_take(self.handle, self._items, _TAKEN_AT_ONCE)
        return self._items[:count]

    def state(self, place: int) -> int:
        """Return the state of an operation, as flags: see `IS_ISSUED` and the following."""
        return self._library.devices_state(self.handle, place)

    def release(self, place: int) -> None:
        """Free the place of an operation that is over, and its events."""
        self._library.devices_release(self.handle, place)

    def give_back(self, device: int, events: Iterable[int | None]) -> None:
        """Return events that no one will query."""
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
        """The first error that a device has reported; 0 if there was none."""
        return self._library.devices_failure(self.handle)

    def stop(self) -> None:
        """From now on, leave all operations on devices to Python."""
        self._library.devices_stop(self.handle)


class NativeWake:
    """Has a thread wait in the library, where it is woken without the GIL; used like `threading.Event`."""

    def __init__(self, library: Library, devices: NativeDevices) -> None:
        """Initialize: no one waits."""
        self._library = library
        self._handle = devices.handle

    def set(self) -> None:
        """Wake the thread."""
        self._library.devices_wake(self._handle)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until woken, or for `timeout` seconds; without one also until something is handed over."""
        self._library.devices_sleep(self._handle, -1 if timeout is None else int(timeout * 1e9))

    def clear(self) -> None:
        """Do nothing: waking once ends one wait."""


def address_of(library: Any, name: str) -> int:
    """Address of a function in a library that is loaded.

    Raises:
        NativeError: There is none of this name.
    """
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except AttributeError as error:
        raise NativeError(f"the CUDA runtime has no {name}") from error
