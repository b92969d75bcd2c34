"""The CUDA runtime calls that capture needs: streams, events, and whether a graph is being captured.

Streams and events are plain numbers, so Python never frees them in a forked child or at exit, where the device may be
gone. Events are reused, and their number is bounded.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from otel_torchdist.capture.core.torch_api import current_cuda_stream
from otel_torchdist.capture.upstream.headers import CURRENT_STREAM, STREAM_HANDLE
from otel_torchdist.errors import TorchDistError
from otel_torchdist.native.devices import CudaFunctions, address_of
from otel_torchdist.native.library import Library

_LIBRARY: Final = Path(torch.__file__).parent / "lib" / "libc10_cuda.so"
"""Symbols are also looked up in the libraries that it links, so this is the CUDA runtime that torch uses."""
_NOT_READY: Final = 600
_THREAD_LOCAL: Final = 1
_NON_BLOCKING: Final = 1
_RELAXED: Final = 2
_PORTABLE: Final = 1
_TO_HOST: Final = 2
_NO_STREAM: Final = 0
"""The default stream of the current device."""


class DriverError(TorchDistError):
    """Failure of a call to the CUDA runtime."""


class DeviceDriver(Protocol):
    """The device calls that capture needs. All raise DriverError if the device reports an error."""

    def current_stream(self, device: int) -> int:
        """Return the calling thread's current stream on a device."""
        ...

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream is being captured into a graph."""
        ...

    def create_event(self, device: int) -> int:
        """Create an event with timing."""
        ...

    def record(self, event: int, device: int, stream: int) -> None:
        """Enqueue an event, whose time is taken when the stream reaches it. Overrides an earlier record."""
        ...

    def prepare_thread(self) -> None:
        """Prepare the calling thread, so that its queries do not break a graph capture on another thread."""
        ...

    def create_stream(self, device: int) -> int:
        """Create a stream that does not synchronize with the default stream."""
        ...

    def is_done(self, event: int) -> bool:
        """Return whether the device has reached an event."""
        ...

    def elapsed_ms(self, earlier: int, later: int) -> float:
        """Return the time between two completed events of one device, as a float32; negative in reverse order."""
        ...

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        ...

    def allocate_pinned(self, size: int) -> int:
        """Allocate pinned host memory, to which all devices can copy asynchronously. Return its address."""
        ...

    def copy_to_host(self, target: int, source: int, size: int, device: int, stream: int) -> None:
        """Enqueue a copy of `size` bytes from a device address to a pinned address."""
        ...


class CudaDriver:
    """The CUDA runtime, called through ctypes.

    There are two instances. The user's threads call through `PyDLL`, which keeps the GIL: the calls return immediately,
    and a release of the GIL can cost 5 ms if another thread competes for it. Our thread calls through `CDLL`, which
    releases the GIL: a query may wait for a device lock, and must not block other threads meanwhile.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        """Look up the functions.

        Raises:
            DriverError: A function is missing.
        """
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self._error_name = _function(library, "cudaGetErrorName", number)
        self._error_name.restype = ctypes.c_char_p
        self._clear_error = _function(library, "cudaGetLastError")
        self._get_device = _function(library, "cudaGetDevice", pointer)
        self._set_device = _function(library, "cudaSetDevice", number)
        self._stream_is_capturing = _function(library, "cudaStreamIsCapturing", pointer, pointer)
        self._exchange_mode = _function(library, "cudaThreadExchangeStreamCaptureMode", pointer)
        self._create_stream = _function(library, "cudaStreamCreateWithFlags", pointer, ctypes.c_uint)
        self._create_event = _function(library, "cudaEventCreateWithFlags", pointer, ctypes.c_uint)
        self._destroy_event = _function(library, "cudaEventDestroy", pointer)
        self._record = _function(library, "cudaEventRecord", pointer, pointer)
        self._query = _function(library, "cudaEventQuery", pointer)
        self._allocate = _function(library, "cudaHostAlloc", pointer, ctypes.c_size_t, ctypes.c_uint)
        self._copy = _function(library, "cudaMemcpyAsync", pointer, pointer, ctypes.c_size_t, number, pointer)
        self._elapsed = _function(library, "cudaEventElapsedTime", pointer, pointer, pointer)

    def current_stream(self, device: int) -> int:
        """Return the calling thread's current stream on a device."""
        return current_cuda_stream(device)

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream is being captured. The default stream never is."""
        if stream == _NO_STREAM:
            return False
        status = ctypes.c_int()
        self._check(self._stream_is_capturing(stream, ctypes.byref(status)))
        return status.value != 0

    def create_event(self, device: int) -> int:
        """Create an event with timing. It belongs to the current device."""
        handle = ctypes.c_void_p()
        before = self._make_current(device)
        try:
            self._check(self._create_event(ctypes.byref(handle), 0))
        finally:
            self._restore_current(before, device)
        return handle.value or 0

    def record(self, event: int, device: int, stream: int) -> None:
        """Record an event. The default stream belongs to the current device, so the device must be current."""
        if stream != _NO_STREAM:
            self._check(self._record(event, stream))
            return
        before = self._make_current(device)
        try:
            self._check(self._record(event, stream))
        finally:
            self._restore_current(before, device)

    def prepare_thread(self) -> None:
        """Leave the default capture mode, in which a query on any thread breaks all captures of the process."""
        mode = ctypes.c_int(_THREAD_LOCAL)
        self._check(self._exchange_mode(ctypes.byref(mode)))

    def create_stream(self, device: int) -> int:
        """Create a non-blocking stream."""
        handle = ctypes.c_void_p()
        before = self._make_current(device)
        try:
            self._check(self._create_stream(ctypes.byref(handle), _NON_BLOCKING))
        finally:
            self._restore_current(before, device)
        return handle.value or 0

    def is_done(self, event: int) -> bool:
        """Return whether an event is done."""
        code = self._query(event)
        if code == _NOT_READY:
            return False
        self._check(code)
        return True

    def elapsed_ms(self, earlier: int, later: int) -> float:
        """Return the time between two events."""
        milliseconds = ctypes.c_float()
        self._check(self._elapsed(ctypes.byref(milliseconds), earlier, later))
        return milliseconds.value

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self._check(self._destroy_event(event))

    def allocate_pinned(self, size: int) -> int:
        """Allocate pinned memory. The relaxed mode keeps the call from breaking a capture on another thread."""
        handle = ctypes.c_void_p()
        mode = ctypes.c_int(_RELAXED)
        self._check(self._exchange_mode(ctypes.byref(mode)))
        try:
            self._check(self._allocate(ctypes.byref(handle), size, _PORTABLE))
        finally:
            self._check(self._exchange_mode(ctypes.byref(mode)))
        return handle.value or 0

    def copy_to_host(self, target: int, source: int, size: int, device: int, stream: int) -> None:
        """Enqueue a copy. As for `record`, the default stream requires the current device."""
        before = self._make_current(device) if stream == _NO_STREAM else device
        try:
            self._check(self._copy(target, source, size, _TO_HOST, stream))
        finally:
            self._restore_current(before, device)

    def _make_current(self, device: int) -> int:
        """Make a device current, and return the previous device."""
        current = ctypes.c_int()
        self._check(self._get_device(ctypes.byref(current)))
        if current.value != device:
            self._check(self._set_device(device))
        return current.value

    def _restore_current(self, before: int, device: int) -> None:
        if before != device:
            self._check(self._set_device(before))

    def _check(self, code: int) -> None:
        if code:
            # The error stays with the thread until it is read. The user's next check would report it.
            self._clear_error()
            raise DriverError(self._error_name(code).decode())


def cuda_drivers() -> tuple[DeviceDriver, DeviceDriver]:
    """Return the runtime for the user's threads, and the runtime for our thread.

    Raises:
        DriverError: torch has no usable CUDA runtime.
    """
    try:
        return CudaDriver(ctypes.PyDLL(str(_LIBRARY))), CudaDriver(ctypes.CDLL(str(_LIBRARY)))
    except OSError as error:
        raise DriverError(f"there is no CUDA runtime: {error}") from error


def cuda_functions(library: Library) -> CudaFunctions:
    """Return the runtime functions for the native library.

    Raises:
        NativeError: A function is missing.
    """
    runtime = ctypes.CDLL(str(_LIBRARY))
    stream = library.stream_of_torch(
        address_of(runtime, CURRENT_STREAM.mangled), address_of(runtime, STREAM_HANDLE.mangled)
    )
    return CudaFunctions(
        current_stream=stream,
        is_capturing=address_of(runtime, "cudaStreamIsCapturing"),
        create_event=address_of(runtime, "cudaEventCreateWithFlags"),
        record=address_of(runtime, "cudaEventRecord"),
        get_device=address_of(runtime, "cudaGetDevice"),
        set_device=address_of(runtime, "cudaSetDevice"),
        last_error=address_of(runtime, "cudaGetLastError"),
    )


def error_name(code: int) -> str:
    """Return the CUDA runtime's name of an error."""
    name = ctypes.CDLL(str(_LIBRARY)).cudaGetErrorName
    name.restype = ctypes.c_char_p
    return name(code).decode()


def _function(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    try:
        function: Any = getattr(library, name)
    except AttributeError as error:
        raise DriverError(f"the CUDA runtime has no {name}") from error
    function.argtypes = arguments
    return function


MAX_EVENTS: Final = 2048
"""Maximum number of events per device. A synchronous operation in flight holds two, an asynchronous one."""


class EventPool:
    """The pool of events of all devices. Any thread may take and return events."""

    def __init__(self, driver: DeviceDriver, capacity: int = MAX_EVENTS) -> None:
        """Initialize an empty pool with at most `capacity` events per device."""
        self._driver = driver
        self._capacity = capacity
        self._devices: dict[int, _Events] = {}

    def take(self, device: int, count: int) -> list[int]:
        """Take `count` events, or none if fewer are left.

        Raises:
            DriverError: An event could not be created.
        """
        events = self._of(device)
        taken: list[int] = []
        while len(taken) < count:
            event = events.free.pop() if events.free else self._make(device, events)
            if event is None:
                self.give_back(device, taken)
                return []
            taken.append(event)
        return taken

    def _make(self, device: int, events: _Events) -> int | None:
        # `next` on a counter is atomic; reading and changing a number is not.
        return self._driver.create_event(device) if next(events.made) <= self._capacity else None

    def give_back(self, device: int, events: Iterable[int]) -> None:
        """Return events to the pool. An event may still be pending: its next record overrides this one."""
        self._of(device).free.extend(events)

    def drain(self) -> list[int]:
        """Take all free events, to destroy them."""
        drained: list[int] = []
        for events in self._devices.values():
            drained += events.free
            events.free.clear()
        return drained

    def _of(self, device: int) -> _Events:
        return self._devices.get(device) or self._devices.setdefault(device, _Events())


class _Events:
    """The free events of one device, and the number of created events."""

    __slots__ = ("free", "made")

    def __init__(self) -> None:
        self.free: deque[int] = deque()
        self.made = itertools.count(1)
