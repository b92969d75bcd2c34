"""Events are made once and used again and again, and there is an end to how many."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import Final

from otel_torchdist.capture.cuda_driver import DeviceDriver

MAX_EVENTS: Final = 2048
"""Of one device: two for a synchronous operation, one for an asynchronous one, from its call to its end."""


class EventPool:
    """The events of all devices. Any thread may take them and give them back."""

    def __init__(self, driver: DeviceDriver, capacity: int = MAX_EVENTS) -> None:
        """Empty; `capacity` is how many events a device can have."""
        self._driver = driver
        self._capacity = capacity
        self._devices: dict[int, _Events] = {}

    def take(self, device: int, count: int) -> list[int]:
        """`count` events, or none where there are not so many left.

        Raises:
            DriverError: An event could not be made.
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
        # Drawing from a counter is one step; to look at a number and then to change it would be two.
        return self._driver.create_event(device) if next(events.made) <= self._capacity else None

    def give_back(self, device: int, events: Iterable[int]) -> None:
        """Events that nobody will ask about; where one is still pending, its next record overrides this one."""
        self._of(device).free.extend(events)

    def drain(self) -> list[int]:
        """Take all events that are free, to destroy them."""
        drained: list[int] = []
        for events in self._devices.values():
            drained += events.free
            events.free.clear()
        return drained

    def _of(self, device: int) -> _Events:
        return self._devices.get(device) or self._devices.setdefault(device, _Events())


class _Events:
    """The events of one device: those that are free, and a count of those that were made."""

    __slots__ = ("free", "made")

    def __init__(self) -> None:
        self.free: deque[int] = deque()
        self.made = itertools.count(1)
