"""The CUDA runtime through ctypes, tested with a fake runtime and with the real one if available."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from otel_torchdist.capture.core.cuda.driver import CudaDriver, DriverError, cuda_drivers

NOT_READY, ILLEGAL_ADDRESS = 600, 700
NON_BLOCKING = 1
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
PORTABLE, TO_HOST = 1, 2
_NUMBER, _POINTER = ctypes.c_int, ctypes.c_void_p


class PlayedRuntime:
    """A fake of the CUDA runtime's functions with its own calling conventions.

    Attributes:
        calls: The calls made, in order, without queries of the current device.
        device: The current device.
        answer: Return value of the next calls.
        unread_error: The error that a thread would find if it checked.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.device = 0
        self.answer = 0
        self.unread_error = 0
        self.mode = GLOBAL
        self._error_name = ctypes.create_string_buffer(b"cudaErrorIllegalAddress")
        self._functions = {
            "cudaGetErrorName": self._make(lambda code: ctypes.addressof(self._error_name), _NUMBER, result=_POINTER),
            "cudaGetLastError": self._make(self._last_error),
            "cudaGetDevice": self._make(self._get_device, _POINTER),
            "cudaSetDevice": self._make(self._set_device, _NUMBER),
            "cudaStreamIsCapturing": self._make(self._is_capturing, _POINTER, _POINTER),
            "cudaThreadExchangeStreamCaptureMode": self._make(self._exchange, _POINTER),
            "cudaStreamCreateWithFlags": self._make(self._create("stream", 0x51), _POINTER, ctypes.c_uint),
            "cudaEventCreateWithFlags": self._make(self._create("event", 0xE1), _POINTER, ctypes.c_uint),
            "cudaEventDestroy": self._make(lambda event: self._call("destroy", event), _POINTER),
            "cudaEventRecord": self._make(
                lambda event, stream: self._call("record", event, stream), _POINTER, _POINTER
            ),
            "cudaEventQuery": self._make(lambda event: self._call("query", event), _POINTER),
            "cudaHostAlloc": self._make(self._allocate, _POINTER, ctypes.c_size_t, ctypes.c_uint),
            "cudaMemcpyAsync": self._make(
                lambda *arguments: self._call("copy", *arguments),
                _POINTER,
                _POINTER,
                ctypes.c_size_t,
                _NUMBER,
                _POINTER,
            ),
            "cudaEventElapsedTime": self._make(self._elapsed, _POINTER, _POINTER, _POINTER),
        }

    def __getattr__(self, name: str) -> Any:
        try:
            return self._functions[name]
        except KeyError:
            raise AttributeError(name) from None

    @staticmethod
    def _make(function: Callable[..., int], *arguments: Any, result: Any = _NUMBER) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(function)

    def _call(self, *call: Any) -> int:
        self.calls.append(call)
        self.unread_error = self.answer
        return self.answer

    def _last_error(self) -> int:
        error, self.unread_error = self.unread_error, 0
        return error

    def _get_device(self, place: int) -> int:
        ctypes.c_int.from_address(place).value = self.device
        return 0

    def _set_device(self, device: int) -> int:
        self.device = device
        self.calls.append(("device", device))
        return 0

    def _is_capturing(self, stream: int, place: int) -> int:
        ctypes.c_int.from_address(place).value = int(stream == 0x99)
        return self._call("capturing", stream)

    def _exchange(self, place: int) -> int:
        mode = ctypes.c_int.from_address(place)
        wanted, mode.value, self.mode = mode.value, self.mode, mode.value
        return self._call("mode", wanted)

    def _allocate(self, place: int, size: int, flags: int) -> int:
        ctypes.c_void_p.from_address(place).value = 0xA0
        return self._call("allocate", size, flags)

    def _create(self, what: str, handle: int) -> Callable[[int, int], int]:
        def create(place: int, flags: int) -> int:
            ctypes.c_void_p.from_address(place).value = handle
            return self._call(what, flags, self.device)

        return create

    def _elapsed(self, place: int, earlier: int, later: int) -> int:
        ctypes.c_float.from_address(place).value = 2.5
        return self._call("elapsed", earlier, later)


@pytest.fixture
def runtime() -> PlayedRuntime:
    """A runtime without a device."""
    return PlayedRuntime()


@pytest.fixture
def driver(runtime: PlayedRuntime) -> CudaDriver:
    """A driver for it."""
    library: Any = runtime
    return CudaDriver(library)


def test_events_are_made_on_their_device(runtime: PlayedRuntime, driver: CudaDriver) -> None:
    """An event and a stream belong to the current device, and the caller's device stays current."""
    assert driver.create_event(1) == 0xE1
    assert driver.create_stream(0) == 0x51
    assert runtime.calls == [("device", 1), ("event", 0, 1), ("device", 0), ("stream", NON_BLOCKING, 0)]
    assert runtime.device == 0


def test_recording_goes_to_the_device_only_for_its_default_stream(runtime: PlayedRuntime, driver: CudaDriver) -> None:
    """Recording on any stream but the default one is a single call, because streams belong to a device."""
    driver.record(0xE1, 1, 0x51)
    driver.record(0xE1, 0, 0)
    driver.record(0xE1, 1, 0)
    assert runtime.calls == [
        ("record", 0xE1, 0x51),
        ("record", 0xE1, None),
        ("device", 1),
        ("record", 0xE1, None),
        ("device", 0),
    ]


def test_captures_are_seen_and_not_broken(runtime: PlayedRuntime, driver: CudaDriver) -> None:
    """Captures are detected, and the capture mode of our thread keeps its queries from breaking them."""
    assert driver.is_capturing(0x99)
    assert not driver.is_capturing(0x51)
    assert not driver.is_capturing(0)
    driver.prepare_thread()
    assert runtime.calls == [("capturing", 0x99), ("capturing", 0x51), ("mode", THREAD_LOCAL)]


def test_memory_is_allocated_beside_a_capture(runtime: PlayedRuntime, driver: CudaDriver) -> None:
    """Memory is allocated in the relaxed capture mode, and the caller's mode is restored."""
    assert driver.allocate_pinned(64) == 0xA0
    assert runtime.calls == [("mode", RELAXED), ("allocate", 64, PORTABLE), ("mode", GLOBAL)]
    assert runtime.mode == GLOBAL


def test_copies_are_enqueued_on_their_device(runtime: PlayedRuntime, driver: CudaDriver) -> None:
    """As for records, only a copy on the default stream makes its device current."""
    driver.copy_to_host(0xA0, 0xD0, 16, 1, 0x51)
    driver.copy_to_host(0xA0, 0xD0, 16, 1, 0)
    assert runtime.calls == [
        ("copy", 0xA0, 0xD0, 16, TO_HOST, 0x51),
        ("device", 1),
        ("copy", 0xA0, 0xD0, 16, TO_HOST, None),
        ("device", 0),
    ]


def test_an_event_is_done_or_not_or_its_device_has_failed(runtime: PlayedRuntime, driver: CudaDriver) -> None:
    """A query returns True or False, or raises if the device has failed."""
    assert driver.is_done(0xE1)
    runtime.answer = NOT_READY
    assert not driver.is_done(0xE1)
    runtime.answer = ILLEGAL_ADDRESS
    with pytest.raises(DriverError, match="cudaErrorIllegalAddress"):
        driver.is_done(0xE1)


@pytest.mark.parametrize(
    "call",
    [
        lambda driver: driver.record(1, 0, 2),
        lambda driver: driver.record(1, 1, 0),
        lambda driver: driver.create_event(1),
        lambda driver: driver.create_stream(1),
        lambda driver: driver.is_capturing(2),
        lambda driver: driver.elapsed_ms(1, 2),
        lambda driver: driver.prepare_thread(),
        lambda driver: driver.destroy_event(1),
    ],
)
def test_errors_are_raised_and_not_left_for_others(
    runtime: PlayedRuntime, driver: CudaDriver, call: Callable[[CudaDriver], object]
) -> None:
    """An error of ours is cleared from the thread: otherwise torch's next check would report it."""
    runtime.answer = ILLEGAL_ADDRESS
    with pytest.raises(DriverError, match="cudaErrorIllegalAddress"):
        call(driver)
    assert runtime.unread_error == 0
    assert runtime.device == 0


def test_elapsed_time(runtime: PlayedRuntime, driver: CudaDriver) -> None:
    """The elapsed time is in milliseconds, from the earlier event to the later."""
    assert driver.elapsed_ms(1, 2) == 2.5
    assert runtime.calls == [("elapsed", 1, 2)]


def test_a_runtime_that_lacks_a_function(runtime: PlayedRuntime) -> None:
    """A missing function is reported once, by name, before anything is recorded."""
    del runtime._functions["cudaEventQuery"]
    library: Any = runtime
    with pytest.raises(DriverError, match="no cudaEventQuery"):
        CudaDriver(library)


def test_the_runtime_that_torch_uses() -> None:
    """In a CUDA build every function is found, with or without a device. Other builds have no such runtime."""
    if torch.version.cuda is None:
        with pytest.raises(DriverError, match="no CUDA runtime"):
            cuda_drivers()
        return
    calling, watching = cuda_drivers()
    assert calling is not watching
    if not torch.cuda.is_available():
        with pytest.raises(DriverError, match=r"^cudaError"):
            watching.create_event(0)


@pytest.mark.process
def test_ranks_on_devices_load_no_msgspec() -> None:
    """What a rank loads with its first operation on a device loads neither msgspec nor OpenTelemetry."""
    program = (
        "import sys; import otel_torchdist.capture.core.cuda.operations; "
        "print(sorted({'msgspec', 'opentelemetry'} & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
