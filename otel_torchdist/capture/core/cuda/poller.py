"""The thread that polls CUDA devices. No other thread waits for it: a query may block on a device lock."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from otel_torchdist import guard
from otel_torchdist.capture.core.cuda.driver import DeviceDriver, DriverError, EventPool
from otel_torchdist.capture.core.cuda.queues import QueuedOperation, Queues, StreamWait
from otel_torchdist.capture.core.cuda.readings import Reading, Readings

if TYPE_CHECKING:
    from otel_torchdist.capture.core.cuda.native_operations import NativeInbox

POLL_S: Final = 0.02
IDLE_POLLS: Final = 25
"""Number of empty polls after which the thread sleeps. Waking it costs the caller more than letting it poll."""
SETTLE_S: Final = 0.25
"""Seconds to wait for the last operations of a tape. PyTorch's watchdog checks every 0.1 s."""

_logger = logging.getLogger("otel_torchdist")


class Wake(Protocol):
    """The used part of `threading.Event`'s interface."""

    def set(self) -> None:
        """Wake the thread."""
        ...

    def wait(self, timeout: float | None = None) -> object:
        """Wait until woken, or for `timeout` seconds."""
        ...

    def clear(self) -> None:
        """Allow the next wait."""
        ...


class _Settling(NamedTuple):
    """A thread's wait for a tape's last operations."""

    deadline_s: float
    settled: threading.Event


class DevicePoller:
    """Poller of operations in flight, 50 times a second. Its thread sleeps after a while without operations.

    Attributes:
        is_broken: Whether a device has reported an error. After an error, no device is queried any more.
        is_asleep: Whether the thread sleeps until it is woken.
    """

    def __init__(
        self,
        driver: DeviceDriver,
        pool: EventPool,
        dropped: Callable[[QueuedOperation], None],
        native: NativeInbox | None = None,
        wake: Wake | None = None,
        readings: Readings | None = None,
    ) -> None:
        """Initialize the poller. Its thread starts with the first operation.

        Args:
            driver: Called on that thread only.
            pool: Receives the events of completed operations.
            dropped: Called with each operation that is over or dropped.
            native: Operations that the native library hands over, if it is in use.
            wake: Event that the thread waits for; a `threading.Event` by default.
            readings: Results that devices compute for us; None if there are none.
        """
        self.is_broken = False
        self._driver = driver
        self._pool = pool
        self._dropped = dropped
        self._queues = Queues(driver, self._drop)
        self._native = native
        self._readings = readings
        self._inbox: deque[QueuedOperation | StreamWait | Reading] = deque()
        self._settling: deque[_Settling] = deque()
        self._wake: Wake = threading.Event() if wake is None else wake
        self.is_asleep = False
        self._is_stopping = False
        self._destroys_events = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    # --- called on any thread ----------------------------------------------------------------------------------

    def put(self, item: QueuedOperation | StreamWait | Reading) -> None:
        """Add an operation to follow, a wait for an operation, or a result to read."""
        self._inbox.append(item)
        if self.is_asleep:
            self._wake.set()
        elif self._thread is None:
            self.start()

    def start(self) -> None:
        """Start the thread, unless it runs already. The library hands operations over without `put`."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="otel-torchdist-cuda", daemon=True)
                self._thread.start()

    @property
    def has_started(self) -> bool:
        """Whether the thread has been started."""
        return self._thread is not None

    def settle(self, timeout_s: float) -> None:
        """Wait briefly for operations in flight, and drop the rest."""
        if self._thread is None or not self._thread.is_alive():
            return
        settling = _Settling(time.monotonic() + SETTLE_S, threading.Event())
        self._settling.append(settling)
        self._wake.set()
        settling.settled.wait(timeout_s)

    def stop(self, timeout_s: float, *, destroy_events: bool) -> None:
        """Stop the thread. If a device does not answer, the thread outlives the timeout."""
        self._destroys_events = destroy_events
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def stop_querying(self, error: DriverError) -> None:
        """Stop querying devices after an error, on any thread."""
        if not self.is_broken:
            self.is_broken = True
            if self._native is not None:
                self._native.devices.stop()
            _logger.warning("otel_torchdist no longer follows operations on CUDA devices: %s", error)
            self._wake.set()

    # --- on our thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        with guard.guarded("cuda"):
            try:
                self._driver.prepare_thread()
            except DriverError as error:
                self.stop_querying(error)
            empty_polls = 0
            while not self._is_stopping:
                empty_polls = 0 if self._poll_queues() else empty_polls + 1
                self._sleep(empty_polls)
            self._poll_queues()
            if self._destroys_events and not self.is_broken:
                self._destroy_all_events()

    def _poll_queues(self) -> bool:
        """Poll everything. Return whether anything is in flight."""
        self._take_items()
        if not self.is_broken:
            try:
                if self._native is not None:
                    self._native.check()
                if self._readings is not None:  # before ends are recorded: statistics of inputs precede the end
                    self._readings.poll()
                self._queues.poll()
            except DriverError as error:
                self.stop_querying(error)
        if self.is_broken:
            self._queues.give_up()
            if self._readings is not None:
                self._readings.give_up()
        self._settle()
        return not self._is_idle

    @property
    def _is_idle(self) -> bool:
        return self._queues.is_empty and (self._readings is None or self._readings.is_empty)

    def _take_items(self) -> None:
        operations: list[QueuedOperation] = []
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, QueuedOperation):
                operations.append(item)
            elif isinstance(item, Reading):
                if self._readings is not None:
                    self._readings.add(item)
            elif item.enqueued.is_void or item.enqueued.wait is not None:
                self._pool.give_back(item.enqueued.device, [item.before, item.after])
            else:
                item.enqueued.wait = item
        if self._native is not None:  # last: by now, the operations ahead of those in the inbox have arrived
            operations = sorted(operations + self._native.take(), key=_number)
        for operation in operations:
            self._queues.add(operation)

    def _settle(self) -> None:
        if not self._settling:
            return
        if not self._is_idle and time.monotonic() < self._settling[0].deadline_s and not self._is_stopping:
            return
        self._queues.forget_all()
        if self._readings is not None:
            self._readings.forget_all()
        while self._settling:
            self._settling.popleft().settled.set()

    def _drop(self, enqueued: QueuedOperation) -> None:
        enqueued.is_void = True
        enqueued.call.enqueued = None  # break the reference cycle
        enqueued.release(self._pool)
        if self._native is not None:
            self._native.dropped(enqueued)
        self._dropped(enqueued)

    def _sleep(self, empty_polls: int) -> None:
        if empty_polls < IDLE_POLLS:
            self._wake.wait(POLL_S)
        else:
            self.is_asleep = True
            if not self._inbox and not self._settling and not self._is_stopping:  # an item may have arrived in between
                self._wake.wait()
            self.is_asleep = False
        self._wake.clear()

    def _destroy_all_events(self) -> None:
        with contextlib.suppress(DriverError):
            native = self._native.devices.drain() if self._native is not None else ()
            readings = self._readings.events() if self._readings is not None else ()
            for event in (*self._pool.drain(), *native, *self._queues.events(), *readings):
                self._driver.destroy_event(event)


def _number(operation: QueuedOperation) -> int:
    return operation.call.number
