"""Follows operations on CUDA devices: when each was enqueued, started and ended.

A synchronous operation runs on the caller's stream, between two events. An asynchronous operation runs on a stream of
NCCL, which is only accessible through its Work. It starts when the caller's stream has reached an event before the call
and NCCL has finished the operations ahead. Its end comes from PyTorch's watchdog, or from events around a wait, which
are recorded for one operation in 16, in pairs (`is_timed`): each event takes the program's thread 9 µs. The watchdog
of `nccl2` (`nccl` from torch 2.15 on) checks once a second, the earlier watchdog ten times.

On a device that waits for its host, the time between two events includes the host's time: the device reaches an
operation when its stream is free, and the host may take about 0.1 ms more to enqueue it.

The code here runs on the user's threads, which only record events; `DevicePoller` queries them.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.c10d.devices import ON_BACKEND_STREAM, peer_of_queue
from otel_torchdist.capture.core.cuda.driver import (
    MAX_EVENTS,
    DeviceDriver,
    DriverError,
    EventPool,
    cuda_drivers,
    cuda_functions,
    error_name,
)
from otel_torchdist.capture.core.cuda.native_operations import NativeInbox
from otel_torchdist.capture.core.cuda.poller import DevicePoller, Wake
from otel_torchdist.capture.core.cuda.queues import QueuedOperation, StreamWait, is_timed
from otel_torchdist.capture.core.cuda.readings import SLOTS, Reading, Readings, Slots
from otel_torchdist.native.devices import NativeDevices, NativeWake
from otel_torchdist.native.library import NativeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_torchdist.capture.core.c10d.native_kernels import NativeKernels
    from otel_torchdist.capture.core.calls.call import OpenCall
    from otel_torchdist.model.numerics import Unseen

_BLOCKING_WAIT: Final = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")

_logger = logging.getLogger("otel_torchdist")


class CudaOperations:
    """The operations of all CUDA devices of this process.

    Attributes:
        poller: Polls the devices.
        native: The native library's operations, if it is in use.
        written: Asynchronous operations by the address that they write to. `wait_tensor` names only that address.
    """

    def __init__(
        self,
        calling: DeviceDriver,
        watching: DeviceDriver,
        has_watchdog: bool = True,
        max_events: int = MAX_EVENTS,
        native: NativeInbox | None = None,
        wake: Wake | None = None,
        slots: int = SLOTS,
    ) -> None:
        """Initialize the operations and their poller.

        Args:
            calling: The driver for the user's threads.
            watching: The driver for our thread.
            has_watchdog: Whether PyTorch reports the ends of asynchronous operations.
            max_events: Maximum number of events per device.
            native: Operations that the native library hands over, if it is in use.
            wake: Event that the poller's thread waits for; a `threading.Event` by default.
            slots: Maximum number of results in flight to the host.
        """
        self.native = native.devices if native is not None else None
        self.written: dict[int, QueuedOperation] = {}
        self._driver = calling
        self._has_watchdog = has_watchdog
        self._pool = EventPool(calling, max_events)
        self._slots = Slots(calling, slots)
        readings = Readings(watching, self._pool, self._slots)
        self.poller = DevicePoller(watching, self._pool, self._dropped, native, wake, readings)

    def begin(self, call: OpenCall, device: int, peer: int) -> QueuedOperation | None:
        """Follow an operation that is about to be issued. Return None if it cannot be followed.

        Args:
            call: The operation.
            device: Index of its device.
            peer: Global rank of the peer in a point-to-point operation.
        """
        is_background = call.flags & ON_BACKEND_STREAM
        if is_background and not self._has_watchdog:
            return None
        if self.native is not None and not self.poller.has_started:
            self.poller.start()  # the next such call may be recorded natively, even if this one is not followed
        recorded = self._record(device, 1 if is_background else 2)
        if recorded is None:
            return None
        stream, events = recorded
        enqueued = QueuedOperation(call, device, stream, peer, events[0], 0 if is_background else events[1])
        enqueued.is_timed = is_timed(call.plan.counter[0])
        call.enqueued = enqueued  # before `put`: if interrupted here, the operation must not block those behind it
        self.poller.put(enqueued)
        return enqueued

    def issued(self, enqueued: QueuedOperation, work: Any, pointers: tuple[int, ...] = ()) -> bool:
        """Record that the backend has accepted an operation.

        Args:
            enqueued: The operation.
            work: Its Work, which is not held; None for a synchronous operation.
            pointers: Addresses of the output's memory.

        Returns:
            Whether its end will be observed.
        """
        if enqueued.is_void:
            return False
        if work is not None:
            return self._issued_on_backend_stream(enqueued, work, pointers)
        if not enqueued.end or not self._record_event(enqueued.end, enqueued.device, enqueued.stream):
            enqueued.is_void = True
            return False
        enqueued.is_issued = True
        return True

    @guard.calls_plug_ins
    def _issued_on_backend_stream(self, enqueued: QueuedOperation, work: Any, pointers: tuple[int, ...]) -> bool:
        """Follow an operation that runs on one of the backend's streams."""
        try:
            result = work.get_future_result()
        except RuntimeError as error:  # not NCCL: the backend has no such future
            guard.pass_on(error)
            enqueued.is_void = True
            return False
        if enqueued.end:
            self._pool.give_back(enqueued.device, [enqueued.end])
            enqueued.end = 0
        enqueued.pointers = pointers
        for pointer in pointers:
            self.written[pointer] = enqueued
        enqueued.result = result
        enqueued.is_issued = True  # last: from here on, the poller may detect its end
        return True

    def wait_begins(self, pointer: int, device: int) -> StreamWait | None:
        """Record that a stream is about to wait for the operation that writes to `pointer`.

        Returns None if no such operation is followed, or if the wait is not timed.
        """
        began_ns = time.monotonic_ns()
        enqueued = self.written.pop(pointer, None)
        return self._wait_for(enqueued, device, began_ns)

    def wait_for_several_begins(self, pointers: Iterable[int], device: int) -> StreamWait | None:
        """Record a wait for several operations.

        The stream continues when the last operation ends. The last one is only known within one queue.
        """
        began_ns = time.monotonic_ns()
        operations = {enqueued for pointer in pointers if (enqueued := self.written.pop(pointer, None)) is not None}
        if len({enqueued.queue_key for enqueued in operations}) != 1:
            return None
        return self._wait_for(max(operations, key=lambda enqueued: enqueued.call.number), device, began_ns)

    def _wait_for(self, enqueued: QueuedOperation | None, device: int, began_ns: int) -> StreamWait | None:
        if enqueued is None or enqueued.device != device or not enqueued.is_timed:
            return None
        recorded = self._record(device, 2)
        if recorded is None:
            return None
        stream, events = recorded
        return StreamWait(enqueued, stream, began_ns, events[0], events[1])

    def wait_ends(self, wait: StreamWait, has_returned: bool) -> None:
        """Record that the wait has been enqueued on the stream, or drop it: after an error the stream may go on."""
        device = wait.enqueued.device
        if has_returned and self._record_event(wait.after, device, wait.stream):
            self.poller.put(wait._replace(took_ns=time.monotonic_ns() - wait.began_ns))
        else:
            self._pool.give_back(device, [wait.before, wait.after])

    def room_for_reading(self, device: int) -> Reading | Unseen:
        """Reserve room for a result that the current stream is about to compute. On failure, return the reason."""
        from otel_torchdist.model.numerics import Unseen  # it loads msgspec, which only checks of values need

        if self.poller.is_broken:
            return Unseen.DEVICE
        try:
            stream = self._driver.current_stream(device)
            if self._driver.is_capturing(stream):
                return Unseen.GRAPH
            slot = self._slots.take()
            if slot is None:
                return Unseen.FULL
            events = self._pool.take(device, 1)
        except DriverError as error:
            self.poller.stop_querying(error)
            return Unseen.DEVICE
        if not events:
            self._slots.give_back(slot)
            return Unseen.FULL
        return Reading(device, stream, slot, events[0])

    def copy(self, reading: Reading, source: int, size: int) -> bool:
        """Enqueue the copy of a result behind the kernels that compute it. Return whether it will arrive.

        Args:
            reading: Result of `room_for_reading` on the same thread and stream.
            source: Address of the result.
            size: Size in bytes.
        """
        try:
            self._driver.copy_to_host(reading.slot, source, size, reading.device, reading.stream)
            self._driver.record(reading.event, reading.device, reading.stream)
        except DriverError as error:
            self.poller.stop_querying(error)
            return False
        reading.size = size
        return True

    def give_back(self, reading: Reading) -> None:
        """Release the room of a result that is not computed."""
        self._slots.give_back(reading.slot)
        self._pool.give_back(reading.device, [reading.event])

    def read(self, reading: Reading) -> None:
        """Deliver a result once it has been copied."""
        self.poller.put(reading)

    def settle(self, timeout_s: float) -> None:
        """Poll one last time before a tape ends, and drop operations that are still open."""
        self.poller.settle(timeout_s)

    def stop(self, timeout_s: float, *, destroy_events: bool = False) -> None:
        """Stop background work.

        Args:
            timeout_s: Maximum time to wait.
            destroy_events: Whether to destroy the events. Not at the end of the process: the device may be gone.
        """
        self.poller.stop(timeout_s, destroy_events=destroy_events)

    def _record(self, device: int, count: int) -> tuple[int, list[int]] | None:
        """Take events and record the first of them. Return the current stream and the events.

        Returns None while a graph is being captured, if not enough events are left, and after a device error.
        """
        if self.poller.is_broken:
            return None
        try:
            stream = self._driver.current_stream(device)
            if self._driver.is_capturing(stream):
                return None
            events = self._pool.take(device, count)
            if not events:
                return None
            self._driver.record(events[0], device, stream)
        except DriverError as error:
            self.poller.stop_querying(error)
            return None
        return stream, events

    def _record_event(self, event: int, device: int, stream: int) -> bool:
        if self.poller.is_broken:
            return False
        try:
            self._driver.record(event, device, stream)
        except DriverError as error:
            self.poller.stop_querying(error)
            return False
        return True

    def _dropped(self, enqueued: QueuedOperation) -> None:
        for pointer in enqueued.pointers:
            if self.written.get(pointer) is enqueued:
                self.written.pop(pointer, None)


def cuda_operations(native: NativeKernels | None = None) -> CudaOperations | None:
    """Return a follower that uses torch's CUDA runtime, or None with a warning if that is not possible.

    Args:
        native: The kernels of the native library, if it is in use.
    """
    has_watchdog = not blocks_in_wait(os.environ)
    try:
        calling, watching = cuda_drivers()
    except DriverError as error:
        _logger.warning("otel_torchdist does not follow operations on CUDA devices: %s", error)
        return None
    if native is None:
        return CudaOperations(calling, watching, has_watchdog)
    try:
        devices = NativeDevices(native.library, cuda_functions(native.library), MAX_EVENTS, has_watchdog)
    except NativeError as error:
        _logger.info("recording operations on CUDA devices in Python: %s", error)
        return CudaOperations(calling, watching, has_watchdog)
    inbox = NativeInbox(devices, native.plan_of, peer_of_queue, error_name)
    return CudaOperations(calling, watching, has_watchdog, native=inbox, wake=NativeWake(native.library, devices))


def blocks_in_wait(environ: Mapping[str, str]) -> bool:
    """Return whether NCCL's waits block the host. Then PyTorch runs no watchdog, and its futures never complete."""
    value = next((environ[name] for name in _BLOCKING_WAIT if name in environ), "")
    return value.strip().lower() in ("1", "y", "yes", "t", "true", "on")
