"""A simulated device: streams, kernels and events on a timeline, and the driver's calls.

The timeline is the host's clock, which the device reads through a clock of its own that runs slightly fast or slow.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from otel_torchdist.capture.core.cuda.driver import DriverError

MS = 1_000_000
POISON = 0xA5
RECORD_NS = 5_000
"""How long the device takes to reach an event on an idle stream."""


@dataclass(eq=False)
class Item:
    """Something on a stream: a kernel, an event, or a wait.

    Attributes:
        enqueued_ns: When the host enqueued it.
        lasts_ns: How long the device takes for it; None until it is released.
        behind: Item on another stream that has to be over first.
        end_ns: When it is over; None while that is not known.
        effect: What it does when it is over.
    """

    enqueued_ns: int
    lasts_ns: int | None = 0
    behind: Item | None = None
    end_ns: int | None = None
    released_ns: int | None = None
    effect: Callable[[], object] | None = None


@dataclass
class Event:
    """An event: the last place at which it was recorded."""

    device: int
    place: Item | None = None
    is_destroyed: bool = False


class SimulatedDevice:
    """Streams and the items on them.

    Attributes:
        now: The host's clock.
        drift: By how much faster the device's own clock runs: 0.0001 is 100 parts in a million.
        capturing: Streams that are being captured.
        broken_captures: Queries that would have broken a capture.
        failure: An error that every call reports from now on.
        queried_by: Names of the threads that have queried an event.
        asked: How often an event was queried.
        recorded: How often an event was recorded.
    """

    def __init__(self, now: Callable[[], int] = time.monotonic_ns, drift: float = 0.0) -> None:
        self.now = now
        self.drift = drift
        self.capturing: set[int] = set()
        self.broken_captures = 0
        self.failure = ""
        self.queried_by: set[str] = set()
        self.asked = 0
        self.recorded = 0
        self.events: dict[int, Event] = {}
        self.streams: dict[int, list[Item]] = {}
        self._free_ns: dict[int, int] = {}
        self._prepared: set[int] = set()
        self._pinned: list[ctypes.Array[ctypes.c_char]] = []
        self._lock = threading.RLock()
        self._current = threading.local()

    # --- for tests -------------------------------------------------------------------------------------------

    def use_stream(self, stream: int) -> None:
        """Make a stream the calling thread's current one."""
        self._current.stream = stream

    def stream_in_use(self) -> int:
        """The calling thread's current stream, which is known also when the device has failed."""
        return getattr(self._current, "stream", 7)

    def launch(self, stream: int, lasts_ns: int | None, behind: Item | None = None) -> Item:
        """Enqueue a kernel; one that lasts None runs until it is released."""
        return self._enqueue(stream, Item(self.now(), lasts_ns, behind))

    def wait_for(self, stream: int, item: Item) -> None:
        """Make a stream wait for something on another one."""
        self._enqueue(stream, Item(self.now(), 0, item))

    def busy(self) -> AbstractContextManager[object]:
        """Hold the lock: other queries block meanwhile, as for a lock of the driver."""
        return self._lock

    def release(self, kernel: Item) -> None:
        """Let a kernel end now."""
        kernel.released_ns = self.now()

    def is_over(self, item: Item) -> bool:
        """Whether the device has completed an item."""
        with self._lock:
            self._play()
            return item.end_ns is not None

    def last(self, stream: int) -> Item | None:
        """What was enqueued last on a stream."""
        items = self.streams.get(stream)
        return items[-1] if items else None

    # --- the driver's calls ----------------------------------------------------------------------------------

    def current_stream(self, device: int) -> int:
        """The calling thread's current stream."""
        self._check()
        return self.stream_in_use()

    def is_capturing(self, stream: int) -> bool:
        """Whether the test has marked the stream as capturing."""
        self._check()
        return stream in self.capturing

    def create_event(self, device: int) -> int:
        """A new event."""
        self._check()
        with self._lock:
            handle = 1000 + len(self.events)
            self.events[handle] = Event(device)
            return handle

    def record(self, event: int, device: int, stream: int) -> None:
        """Enqueue an event on a stream."""
        self._check()
        assert stream not in self.capturing, "what is recorded here becomes a part of the graph"
        self.recorded += 1
        known = self._event(event)
        assert known.device == device, "an event of another device cannot be recorded"
        known.place = self._enqueue(stream, Item(self.now(), RECORD_NS if not self.last(stream) else 0))

    def prepare_thread(self) -> None:
        """Make this thread's queries harmless for captures."""
        self._check()
        self._prepared.add(threading.get_ident())

    def create_stream(self, device: int) -> int:
        """A new stream."""
        self._check()
        return 500_000 + len(self.streams)

    def is_done(self, event: int) -> bool:
        """Whether the device has reached an event."""
        self._check()
        with self._lock:
            self.asked += 1
            self.queried_by.add(threading.current_thread().name)
            self.broken_captures += bool(self.capturing) and threading.get_ident() not in self._prepared
            return self._time(event) is not None

    def elapsed_ms(self, earlier: int, later: int) -> float:
        """The time between two events on the device's clock, in its precision."""
        self._check()
        with self._lock:
            begin, end = self._time(earlier), self._time(later)
            if begin is None or end is None:
                raise DriverError("cudaErrorNotReady")
            return ctypes.c_float((end - begin) * (1 + self.drift) / MS).value

    def destroy_event(self, event: int) -> None:
        """Mark an event as unusable."""
        self._check()
        self._event(event).is_destroyed = True

    def allocate_pinned(self, size: int) -> int:
        """Memory that is never freed."""
        self._check()
        self._pinned.append(ctypes.create_string_buffer(size))
        return ctypes.addressof(self._pinned[-1])

    def copy_to_host(self, target: int, source: int, size: int, device: int, stream: int) -> None:
        """Enqueue a copy: until the stream has got there, the target holds what means nothing."""
        self._check()
        assert stream not in self.capturing, "what is copied here becomes a part of the graph"
        content = ctypes.string_at(source, size)  # as it is now, which is what a stream in order would copy
        ctypes.memset(target, POISON, size)
        self._enqueue(stream, Item(self.now(), 0, effect=lambda: ctypes.memmove(target, content, size)))

    # --- the timeline ----------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.failure:
            raise DriverError(self.failure)

    def _event(self, event: int) -> Event:
        known = self.events[event]
        assert not known.is_destroyed
        return known

    def _time(self, event: int) -> int | None:
        self._play()
        place = self._event(event).place
        assert place is not None, "an event was asked for that was never recorded"
        return place.end_ns

    def _enqueue(self, stream: int, item: Item) -> Item:
        with self._lock:
            self.streams.setdefault(stream, []).append(item)
            return item

    def _play(self) -> None:
        """Advance every stream to the present."""
        moved = True
        while moved:
            moved = any([self._play_stream(stream, items) for stream, items in self.streams.items()])

    def _play_stream(self, stream: int, items: list[Item]) -> bool:
        moved = False
        while items:
            item = items[0]
            if item.behind is not None and item.behind.end_ns is None:
                return moved
            behind_ns = item.behind.end_ns or 0 if item.behind is not None else 0
            start_ns = max(item.enqueued_ns, self._free_ns.get(stream, 0), behind_ns)
            end_ns = start_ns + item.lasts_ns if item.lasts_ns is not None else item.released_ns
            if end_ns is None or end_ns > self.now():
                return moved
            item.end_ns = self._free_ns[stream] = max(end_ns, start_ns)
            items.pop(0)
            if item.effect is not None:
                item.effect()
            moved = True
        return moved
