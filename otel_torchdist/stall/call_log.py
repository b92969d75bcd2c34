"""What a rank has called in one lane, in windows that can be compared with those of other ranks at a glance.

Ranks are never read at the very same moment, and thousands of calls may pass between two looks. So the calls of each 64
places of a lane make a window with one digest, and the last few windows are kept: ranks that have called the same have
the same digests, and where they have not, the calls themselves are still there.
"""

from __future__ import annotations

import zlib
from typing import Final

from otel_torchdist.stall.mismatch import comparable
from otel_torchdist.stall.world import Arrival, Window

LENGTH: Final = 64
MAX_WINDOWS: Final = 4
MAX_DIGESTS: Final = 4_096


class CallLog:
    """One lane of one rank."""

    __slots__ = ("_arrivals", "windows")

    def __init__(self) -> None:
        """Nothing has been called."""
        self._arrivals: list[Arrival] = []
        self.windows: tuple[Window, ...] = ()

    def entered(self, arrival: Arrival, digests: Digests) -> bool:
        """Take in a call; whether a window is complete with it."""
        place = (arrival.sequence - 1) % LENGTH
        if place != len(self._arrivals):  # records were lost, or a call was refused and its place taken by another
            del self._arrivals[place:]
        if place == len(self._arrivals):
            self._arrivals.append(arrival)
        if len(self._arrivals) < LENGTH:
            return False
        arrivals, self._arrivals = tuple(self._arrivals), []
        digest = digests.of(arrivals)
        self.windows = (*self.windows[1 - MAX_WINDOWS :], Window((arrival.sequence - 1) // LENGTH, digest, arrivals))
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
