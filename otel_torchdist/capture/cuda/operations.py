"""Follows operations on CUDA devices: when each was enqueued, begun and ended.

A synchronous operation runs on the caller's stream, between two events. An asynchronous one runs on a stream of NCCL's
that cannot be reached without holding its Work: it begins when the caller's stream has come to an event before the call
and NCCL has ended what was ahead, and its end is what PyTorch's watchdog says, or an event after a wait that we see.
The watchdog of `nccl2`, which is `nccl` from torch 2.15 on, makes its rounds once a second, that of before ten times.

On a device that waits for its host, the time between two events is the host's: the device has come to an operation
when its stream is free for it, and the host may take some 0.1 ms more to enqueue it.

What is here runs on the user's threads, which only record events; `DevicePoller` asks for them.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.c10d.devices import LEFT_ALONE
from otel_torchdist.capture.cuda.driver import MAX_EVENTS, DeviceDriver, DriverError, EventPool, cuda_drivers
from otel_torchdist.capture.cuda.poller import DevicePoller
from otel_torchdist.capture.cuda.queues import QueuedOperation, Wait

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_torchdist.capture.c10d.call import Call

_BLOCKING_WAIT: Final = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")

_logger = logging.getLogger("otel_torchdist")


class CudaOperations:
    """The operations of all CUDA devices of this process.

    Attributes:
        watch: Asks the devices.
        written: Asynchronous operations by the memory that they write to, for a wait that names only that.
    """

    def __init__(
        self, calling: DeviceDriver, watching: DeviceDriver, has_watchdog: bool = True, max_events: int = MAX_EVENTS
    ) -> None:
        """Nothing is followed yet.

        Args:
            calling: The device as the user's threads call it.
            watching: The device as our thread calls it.
            has_watchdog: Whether PyTorch says how asynchronous operations end.
            max_events: Events that there can be for a device.
        """
        self.written: dict[int, QueuedOperation] = {}
        self._driver = calling
        self._has_watchdog = has_watchdog
        self._pool = EventPool(calling, max_events)
        self.watch = DevicePoller(watching, self._pool, self._dropped)

    def begin(self, call: Call, device: int, peer: int) -> QueuedOperation | None:
        """An operation is about to be handed over; None when it cannot be followed.

        Args:
            call: The operation.
            device: Index of its device.
            peer: Global rank of the other side of a point-to-point operation.
        """
        is_left_alone = call.flags & LEFT_ALONE
        if is_left_alone and not self._has_watchdog:
            return None
        recorded = self._record(device, 1 if is_left_alone else 2)
        if recorded is None:
            return None
        stream, events = recorded
        enqueued = QueuedOperation(call, device, stream, peer, events[0], 0 if is_left_alone else events[1])
        call.enqueued = enqueued  # before it is watched: if it is interrupted here, it must not block what comes after
        self.watch.put(enqueued)
        return enqueued

    def issued(self, enqueued: QueuedOperation, work: Any, pointers: tuple[int, ...] = ()) -> bool:
        """The backend has accepted an operation.

        Args:
            enqueued: The operation.
            work: Its Work, which is not kept; None for a synchronous one.
            pointers: Where it writes to.

        Returns:
            Whether its end will be found out.
        """
        if enqueued.is_void:
            return False
        if work is not None:
            return self._issued_elsewhere(enqueued, work, pointers)
        if not enqueued.end or not self._record_again(enqueued.end, enqueued.device, enqueued.stream):
            enqueued.is_void = True
            return False
        enqueued.is_issued = True
        return True

    @guard.calls_plug_ins
    def _issued_elsewhere(self, enqueued: QueuedOperation, work: Any, pointers: tuple[int, ...]) -> bool:
        """It runs on a stream of the backend's."""
        try:
            result = work.get_future_result()
        except RuntimeError as error:  # not NCCL: this backend has none
            guard.pass_on(error)
            enqueued.is_void = True
            return False
        if enqueued.end:
            self._pool.give_back(enqueued.device, [enqueued.end])
            enqueued.end = 0
        enqueued.pointers = pointers
        for pointer in pointers:
            self.written[pointer] = enqueued
        enqueued.result = result  # last: from here on it may be found to have ended
        return True

    def wait_begins(self, pointer: int, device: int) -> Wait | None:
        """A stream is about to be made to wait for what writes to `pointer`; None when that is not watched."""
        began_ns = time.monotonic_ns()
        enqueued = self.written.pop(pointer, None)
        return self._wait_for(enqueued, device, began_ns)

    def wait_for_several_begins(self, pointers: Iterable[int], device: int) -> Wait | None:
        """As `wait_begins`, for several: the stream goes on when the last ends, which is known within one queue."""
        began_ns = time.monotonic_ns()
        found = {enqueued for pointer in pointers if (enqueued := self.written.pop(pointer, None)) is not None}
        if len({enqueued.queue for enqueued in found}) != 1:
            return None
        return self._wait_for(max(found, key=lambda enqueued: enqueued.call.number), device, began_ns)

    def _wait_for(self, enqueued: QueuedOperation | None, device: int, began_ns: int) -> Wait | None:
        recorded = self._record(device, 2) if enqueued is not None and enqueued.device == device else None
        if enqueued is None or recorded is None:
            return None
        stream, events = recorded
        return Wait(enqueued, stream, began_ns, events[0], events[1])

    def wait_ends(self, wait: Wait) -> None:
        """The stream waits."""
        if self._record_again(wait.after, wait.enqueued.device, wait.stream):
            self.watch.put(wait._replace(took_ns=time.monotonic_ns() - wait.began_ns))

    def settle(self, timeout_s: float) -> None:
        """A tape is about to end: look a last time, and let go of what is open."""
        self.watch.settle(timeout_s)

    def stop(self, timeout_s: float, *, give_events_up: bool = False) -> None:
        """End what runs in the background.

        Args:
            timeout_s: How long to wait for it.
            give_events_up: Destroy what belongs to the device. Not at the end of the process: it may be gone.
        """
        self.watch.stop(timeout_s, give_events_up=give_events_up)

    def _record(self, device: int, count: int) -> tuple[int, list[int]] | None:
        """Take events and record the first of them; returns the current stream and the events.

        None where a graph is being captured, where there are no events left, and where the device is left alone.
        """
        if self.watch.is_broken:
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
            self.watch.leave_alone(error)
            return None
        return stream, events

    def _record_again(self, event: int, device: int, stream: int) -> bool:
        if self.watch.is_broken:
            return False
        try:
            self._driver.record(event, device, stream)
        except DriverError as error:
            self.watch.leave_alone(error)
            return False
        return True

    def _dropped(self, enqueued: QueuedOperation) -> None:
        for pointer in enqueued.pointers:
            if self.written.get(pointer) is enqueued:
                self.written.pop(pointer, None)


def cuda_operations() -> CudaOperations | None:
    """Follows CUDA operations with the runtime that torch uses; None, and a warning, where that cannot be."""
    try:
        calling, watching = cuda_drivers()
    except DriverError as error:
        _logger.warning("otel_torchdist does not follow operations on CUDA devices: %s", error)
        return None
    return CudaOperations(calling, watching, has_watchdog=not _blocks_in_wait(os.environ))


def _blocks_in_wait(environ: Mapping[str, str]) -> bool:
    """Whether NCCL's waits are set to block the host: PyTorch then runs no watchdog, and its futures never end."""
    value = next((environ[name] for name in _BLOCKING_WAIT if name in environ), "")
    return value.strip().lower() in ("1", "y", "yes", "t", "true", "on")
