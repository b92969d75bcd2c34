"""What a rank has called in one lane, in windows that can be compared with those of other ranks at a glance.

Ranks are never read at the very same moment, and thousands of calls may pass between two looks. So the calls of each 64
places of a lane make a window with one digest, and the last few windows are kept: ranks that have called the same have
the same digests, and where they have not, the calls themselves are still there.
"""

from __future__ import annotations

import zlib
from typing import Final

from otel_torchdist.stall.mismatch import comparable
from otel_torchdist.stall.world import Arrival, TimedWindow, Window

LENGTH: Final = 64
MAX_WINDOWS: Final = 4
MAX_DIGESTS: Final = 4_096


class CallLog:
    """One lane of one rank.

    Attributes:
        windows: The last complete ones.
        times: When the calls of the newest one were entered.
    """

    __slots__ = ("_arrivals", "_next", "_times", "times", "windows")

    def __init__(self) -> None:
        """Nothing has been called."""
        self._arrivals: list[Arrival] = []
        self._next = 1
        self._times: list[int] = []
        self.windows: tuple[Window, ...] = ()
        self.times: TimedWindow | None = None

    def entered(self, arrival: Arrival, at_ns: int, digests: Digests) -> bool:
        """Take in a call; whether a window is complete with it."""
        sequence = arrival.sequence
        if sequence != self._next and not self._goes_on_at(sequence):
            return False
        self._next = sequence + 1
        self._arrivals.append(arrival)
        self._times.append(at_ns)
        if len(self._arrivals) < LENGTH:
            return False
        arrivals, self._arrivals = tuple(self._arrivals), []
        times, self._times = tuple(self._times), []
        number = (sequence - 1) // LENGTH
        self.windows = (*self.windows[1 - MAX_WINDOWS :], Window(number, digests.of(arrivals), arrivals))
        self.times = TimedWindow(number, times)
        return True

    def unfinished(self, digests: Digests) -> Window | None:
        """The calls since the last complete window, which will not become one where the run is over."""
        arrivals = tuple(self._arrivals)
        return Window((arrivals[0].sequence - 1) // LENGTH, digests.of(arrivals), arrivals) if arrivals else None

    def _goes_on_at(self, sequence: int) -> bool:
        """Whether the window can be completed from here on: records were lost, or a call was refused."""
        place = (sequence - 1) % LENGTH
        if not self._next - len(self._arrivals) <= sequence < self._next:
            place = 0 if place == 0 else -1
        if place < 0:
            self._next = 0
            self._arrivals, self._times = [], []
            return False
        del self._arrivals[place:], self._times[place:]
        return True


class Digests:
    """Digests of calls, the same in every process."""

    def __init__(self) -> None:
        """None is known."""
        self._known: dict[tuple[object, int], bytes] = {}

    def of(self, arrivals: tuple[Arrival, ...]) -> int:
        """The digest of a window."""
        return zlib.crc32(b"".join(map(self._text, arrivals)))

    def _text(self, arrival: Arrival) -> bytes:
        key = (arrival.signature, arrival.root)
        text = self._known.get(key)
        if text is None:
            if len(self._known) >= MAX_DIGESTS:
                self._known.clear()
            text = self._known[key] = zlib.crc32(repr(comparable(arrival)).encode()).to_bytes(4, "little")
        return text
