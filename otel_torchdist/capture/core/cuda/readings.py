"""A few bytes that a device has computed, on their way to the host, without anyone waiting for them.

The caller's thread enqueues a copy into a slot of pinned memory and an event behind it; our thread asks for the event,
and then reads the slot. What is copied is a tensor of ours, which the next kernel of the same stream may overwrite: it
has been copied by then. So neither it nor a tensor of the program's is held.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from otel_torchdist.capture.core.cuda.driver import DeviceDriver, EventPool

SLOTS: Final = 256
"""Results in flight, on all devices; what is computed beyond that is not looked at."""
SLOT_BYTES: Final = 64

_logger = logging.getLogger("otel_torchdist")


class Reading:
    """A result on its way.

    Attributes:
        device: Index of the device.
        stream: The stream that computes it.
        slot: Address of its slot.
        event: The event behind the copy.
        size: Bytes.
        arrived: Called on our thread with these bytes; None until the host knows what to do with them.
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
    """The pinned memory, which is never freed: at exit, after an error, or in a child the device may be gone."""

    def __init__(self, driver: DeviceDriver, count: int = SLOTS) -> None:
        """Initialize without memory; it is allocated with the first slot that is taken."""
        self._driver = driver
        self._count = count
        self._free: deque[int] = deque()
        self._is_allocated = False

    def take(self) -> int | None:
        """The address of a free slot; None if there is none.

        Raises:
            DriverError: There is no memory.
        """
        if not self._is_allocated:
            self._is_allocated = True
            begin = self._driver.allocate_pinned(self._count * SLOT_BYTES)
            self._free.extend(range(begin, begin + self._count * SLOT_BYTES, SLOT_BYTES))
        try:
            return self._free.popleft()
        except IndexError:
            return None

    def give_back(self, slot: int) -> None:
        """Return a slot that nothing writes to any more."""
        self._free.append(slot)


class Readings:
    """The results on their way. Belongs to the polling thread."""

    def __init__(self, driver: DeviceDriver, pool: EventPool, slots: Slots) -> None:
        """Read with a driver of that thread's."""
        self._driver = driver
        self._pool = pool
        self._slots = slots
        self._streams: dict[Hashable, deque[Reading]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on its way."""
        return not self._streams

    def add(self, reading: Reading) -> None:
        """Follow a result; those of one stream arrive in the order in which they are added."""
        self._streams.setdefault((reading.device, reading.stream), deque()).append(reading)

    def poll(self) -> None:
        """Pass on what has arrived.

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
        """The events of what has not arrived."""
        return [reading.event for queue in self._streams.values() for reading in queue]

    def forget_all(self) -> None:
        """Pass nothing on that has not arrived: its tape ends. Its slots are used again when it has."""
        for queue in self._streams.values():
            for reading in queue:
                reading.arrived = None

    def give_up(self) -> None:
        """Drop everything, because a device has failed. Slots that it may still write to are not used again."""
        self._streams.clear()
