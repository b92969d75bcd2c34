"""Scans of a ring, without reading it record by record."""

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


_COPIED_AT_ONCE: Final = 4_096
_STRIDE: Final = layout.RECORD_SIZE // 8
_COMPLETED: Final = layout.WORDS_OFFSET // 8 + Word.COMPLETED


def unfinished(memory: TapeMemory, capacity: int, first: int, end: int) -> Iterator[int]:
    """Yield the numbers of records that do not show their own end: open operations, ends of others, steps.

    Args:
        memory: The tape.
        capacity: Records in its ring.
        first: The first number of a range that is no longer than the ring.
        end: The number behind that range. What is no longer in the ring, or not there yet, is left out.
    """
    while first < end:
        slot = first % capacity
        count = min(end - first, capacity - slot, _COPIED_AT_ONCE)
        words = memoryview(memory.read(layout.RING_OFFSET + slot * layout.RECORD_SIZE, count * layout.RECORD_SIZE))
        words = words.cast("Q")
        found = zip(words[::_STRIDE].tolist(), words[_COMPLETED::_STRIDE].tolist(), strict=True)
        yield from (first + nth for nth, (number, ended) in enumerate(found) if not ended and number == first + nth)
        first += count
