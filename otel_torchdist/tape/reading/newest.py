"""Finds the newest valid record of a ring whose live words cannot be trusted."""

from __future__ import annotations

import heapq
import time
import weakref
from typing import Final

from otel_torchdist.tape import layout
from otel_torchdist.tape.mapped import MappedTape
from otel_torchdist.tape.memory import numbers_in

MAX_CANDIDATES: Final = 4096
LONG_SCAN_S: Final = 0.005
SCANS_OF_A_POLL: Final = 8
SCAN_SHARE: Final = 20
"""After a long scan of the whole ring, or many scans, the next one waits this many times as long as the last took."""


class NewestWhole:
    """Scans one tape's ring, all of it. A tape crafted to need that at every poll gets little of our time."""

    def __init__(self, tape: MappedTape) -> None:
        """Scan the ring of `tape`, which owns this."""
        self._tape = weakref.proxy(tape)  # readers dropped without `close` go at once, and their files with them
        self._scans = 0
        self._from = 0.0

    def begin_poll(self) -> None:
        """Count scans of the next poll."""
        self._scans = 0

    def newest(self) -> int:
        """Return the newest number of a valid record; 0 if there is none, or the next scan is not due yet."""
        if time.monotonic() < self._from:
            return 0
        tape = self._tape
        began = time.thread_time()
        newest = heapq.nlargest(MAX_CANDIDATES, numbers_in(tape.words, layout.RING_OFFSET, tape.capacity))
        found = next((number for number in newest if tape.record(number) is not None), 0)
        took = time.thread_time() - began
        self._scans += 1
        if took > LONG_SCAN_S or self._scans == SCANS_OF_A_POLL:
            self._from = time.monotonic() + SCAN_SHARE * took
        return found
