"""When a rank's device came to the calls of one lane, in windows that can be compared with those of other ranks.

That is known when they have ended, and not before. Of calls on the host, see `CallLog`.
"""

from __future__ import annotations

from typing import Final

from otel_torchdist.stall.call_log import LENGTH, MAX_WINDOWS
from otel_torchdist.stall.world import TimedWindow

MAX_PARTIAL: Final = 2
"""Asynchronous calls may end in another order than they began."""


class ArrivalLog:
    """One lane of one rank.

    Attributes:
        windows: The last complete ones.
    """

    __slots__ = ("_partial", "windows")

    def __init__(self) -> None:
        """Nothing has ended."""
        self._partial: dict[int, list[int]] = {}
        self.windows: tuple[TimedWindow, ...] = ()

    def ended(self, sequence: int, arrived_ns: int) -> bool:
        """Take in a call; whether a window is complete with it."""
        number = (sequence - 1) // LENGTH
        times = self._partial.get(number)
        if times is None:
            if len(self._partial) >= MAX_PARTIAL:
                del self._partial[next(iter(self._partial))]
            times = self._partial[number] = []
        times.append(arrived_ns)
        if len(times) < LENGTH:
            return False
        del self._partial[number]
        # A rank comes to its calls in their order, whatever the order in which they end.
        self.windows = (*self.windows[1 - MAX_WINDOWS :], TimedWindow(number, tuple(sorted(times))))
        return True
