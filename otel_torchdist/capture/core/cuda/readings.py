"""Readings: small results that a device computes, copied to the host asynchronously.

The caller's thread enqueues a copy into a slot of pinned memory and an event behind it. Our thread queries the event,
and then reads the slot. The next kernel of the same stream may overwrite the source, which has been copied by then. So
neither the source nor a tensor of the program is held.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from otel_torchdist.capture.core.cuda.driver import DeviceDriver, EventPool

SLOTS: Final = 256
"""Maximum number of results in flight, on all devices. Further results are not computed."""
SLOT_BYTES: Final = 64

_logger = logging.getLogger("otel_torchdist")


class Reading:
    """A result in flight.

    Attributes:
        stream: The stream that computes it.
        slot: Address of its slot.
        event: The event behind the copy.
        size: Size in bytes.
        arrived: Called on our thread with the bytes; None until the caller has set it.
    """

    __slots__ = ("arrived", "device", "event", "size", "slot", "stream")

    def __init__(self, device: int, stream: int, slot: int, event: int) -> None:
        self.device = device
        self.stream = stream
        self.slot = slot
        self.event = event
        self.size = 0
        self.arrived: Callable[[bytes], object] | None = None


class Slots:
    """The slots in pinned memory. It is never freed: at exit, after an error, or in a child the device may be gone."""

    def __init__(self, driver: DeviceDriver, count: int = SLOTS) -> None:
        """Initialize without memory. The first `take` allocates it."""
        self._driver = driver
        self._count = count
        self._free: deque[int] = deque()
        self._is_allocated = False

    def take(self) -> int | None:
        """Take a free slot. Return its address, or None if there is none.

        Raises:
            DriverError: The memory could not be allocated.
        """
        if not self._is_allocated:
            self._is_allocated = True
            size = self._count * SLOT_BYTES
            address = self._driver.allocate_pinned(size)
            self._free.extend(range(address, address + size, SLOT_BYTES))
        try:
            return self._free.popleft()
        except IndexError:
            return None

    def give_back(self, slot: int) -> None:
        """Release a slot. Nothing may write to it any more."""
        self._free.append(slot)


class Readings:
    """The results in flight. Used by the polling thread only."""

    def __init__(self, driver: DeviceDriver, pool: EventPool, slots: Slots) -> None:
        """Initialize with the driver of that thread."""
        self._driver = driver
        self._pool = pool
        self._slots = slots
        self._streams: dict[Hashable, deque[Reading]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no result is in flight."""
        return not self._streams

    def add(self, reading: Reading) -> None:
        """Add a result. Results of one stream arrive in the order of their `add` calls."""
        self._streams.setdefault((reading.device, reading.stream), deque()).append(reading)

    def poll(self) -> None:
        """Deliver completed readings.

        Raises:
            DriverError: A device reports an error.
        """
        for key, queue in list(self._streams.items()):
            while queue and self._driver.is_done(queue[0].event):
                self._arrived(queue.popleft())
            if not queue:
                del self._streams[key]

    def _arrived(self, reading: Reading) -> None:
        content = ctypes.string_at(reading.slot, reading.size)
        self._pool.give_back(reading.device, [reading.event])
        self._slots.give_back(reading.slot)
        if reading.arrived is not None:
            reading.arrived(content)

    def events(self) -> list[int]:
        """Return the events of results in flight."""
        return [reading.event for queue in self._streams.values() for reading in queue]

    def forget_all(self) -> None:
        """Discard results in flight, because their tape ends. Their slots are reused once they arrive."""
        for queue in self._streams.values():
            for reading in queue:
                reading.arrived = None

    def give_up(self) -> None:
        """Drop all results after a device error. The device may still write to their slots, so they are not reused."""
        self._streams.clear()
