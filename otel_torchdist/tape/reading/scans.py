"""Scans of a ring that do not decode records."""

from __future__ import annotations

import heapq
import time
import weakref
from collections.abc import Iterator
from typing import Final

from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import Word
from otel_torchdist.tape.mapped import MappedTape
from otel_torchdist.tape.memory import TapeMemory, numbers_in

MAX_CANDIDATES: Final = 4096
LONG_SCAN_S: Final = 0.005
MAX_SCANS_OF_POLL: Final = 8
SCAN_SHARE: Final = 20
"""After a long scan or many scans, the pause before the next scan, as a multiple of the last scan's duration."""


class RingScan:
    """Finds the newest valid record by a scan of the whole ring, at a bounded cost even for a forged tape."""

    def __init__(self, tape: MappedTape) -> None:
        """Scan the ring of `tape`, which owns this object."""
        self._tape = weakref.proxy(tape)  # no cycle: readers dropped without `close` close their files immediately
        self._scans = 0
        self._next_scan_s = 0.0

    def begin_poll(self) -> None:
        """Reset the number of scans."""
        self._scans = 0

    def newest(self) -> int:
        """Return the highest number of a valid record; 0 without one, or if the next scan is not due yet."""
        if time.monotonic() < self._next_scan_s:
            return 0
        tape = self._tape
        began = time.thread_time()
        candidates = heapq.nlargest(MAX_CANDIDATES, numbers_in(tape.words, layout.RING_OFFSET, tape.capacity))
        newest = next((number for number in candidates if tape.record(number) is not None), 0)
        took = time.thread_time() - began
        self._scans += 1
        if took > LONG_SCAN_S or self._scans == MAX_SCANS_OF_POLL:
            self._next_scan_s = time.monotonic() + SCAN_SHARE * took
        return newest


_COPIED_AT_ONCE: Final = 4_096
_STRIDE: Final = layout.RECORD_SIZE // 8
_COMPLETED: Final = layout.WORDS_OFFSET // 8 + Word.COMPLETED


def unfinished(memory: TapeMemory, capacity: int, first: int, end: int) -> Iterator[int]:
    """Yield the numbers of records without a completion: open operations, late completions, steps.

    Args:
        memory: The tape.
        capacity: Number of records in its ring.
        first: First number of a range no longer than the ring.
        end: The number after the last number of the range. Records missing from the ring are left out.
    """
    while first < end:
        slot = first % capacity
        count = min(end - first, capacity - slot, _COPIED_AT_ONCE)
        words = memoryview(memory.read(layout.RING_OFFSET + slot * layout.RECORD_SIZE, count * layout.RECORD_SIZE))
        words = words.cast("Q")
        records = zip(words[::_STRIDE].tolist(), words[_COMPLETED::_STRIDE].tolist(), strict=True)
        yield from (first + nth for nth, (number, ended) in enumerate(records) if not ended and number == first + nth)
        first += count
