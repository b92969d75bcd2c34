"""Counters of the kernel and of devices as totals that never fall."""

from __future__ import annotations

from typing import Final

MAX_COUNTERS: Final = 4_096


class Totals:
    """Adds up what counters have grown by.

    A counter that falls has begun anew: a driver was loaded again, a counter was reset or has wrapped. What it shows
    then is what has come since; of one that has wrapped this is too little by what it had left, and never too much.
    """

    def __init__(self) -> None:
        self._counters: dict[tuple[str, ...], tuple[int, int]] = {}
        self._read: set[tuple[str, ...]] = set()

    def total(self, key: tuple[str, ...], value: int) -> int:
        """Return the total of a counter that now shows `value`."""
        last, total = self._counters.get(key, (0, 0))
        total += value - last if value >= last else value
        if key in self._counters or len(self._counters) < MAX_COUNTERS:
            self._counters[key] = value, total
            self._read.add(key)
        return total

    def growth(self, key: tuple[str, ...], value: int) -> int:
        """Return by how much a counter has grown since it was last read; 0 at first, when nothing is known."""
        is_first = key not in self._counters
        before = self._counters.get(key, (0, 0))[1]
        grown = self.total(key, value) - before
        return 0 if is_first else grown

    def forget_unread(self) -> None:
        """Forget counters that were not read since the last call: their devices are gone."""
        self._counters = {key: self._counters[key] for key in self._read}
        self._read = set()
