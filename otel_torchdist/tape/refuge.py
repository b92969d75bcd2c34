"""The refuge: a table of open operations that are moved out of the ring before their slots are reused."""

from __future__ import annotations

import threading
from typing import Final

from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.layout import LiveWord

_RECORD_WORDS: Final = layout.RECORD_SIZE // 8
_REFUGE_WORD: Final = layout.REFUGE_OFFSET // 8
_WORDS_WORD: Final = layout.WORDS_OFFSET // 8
_RING_OFFSET: Final = layout.RING_OFFSET
_RECORD_SIZE: Final = layout.RECORD_SIZE
_NOT_KEPT: Final = -1
"""Marks an open operation that was overwritten because the refuge was full."""


class Refuge:
    """Writes the refuge of a tape.

    `_open` maps the number of each open operation to its location: 0 for the ring, slot + 1 for the refuge, or
    `_NOT_KEPT`.
    """

    _words: memoryview
    _bytes: memoryview
    _capacity: int

    def _create_refuge(self) -> None:
        self._open: dict[int, int] = {}
        self._lap_lock = threading.RLock()
        self._free_refuge = list(range(layout.REFUGE_SLOTS))

    def _move_to_refuge(self, number: int) -> None:
        """Move an open operation from the ring to the refuge before its slot is reused."""
        with self._lap_lock:
            if self._open.pop(number, None) is None:
                return
            slot = self._free_refuge.pop() if self._free_refuge else _NOT_KEPT
            if slot == _NOT_KEPT:
                self._words[LiveWord.RECORDS_DROPPED] += 1
                self._open[number] = _NOT_KEPT
                return
            source = _RING_OFFSET + (number % self._capacity) * _RECORD_SIZE
            target = layout.REFUGE_OFFSET + slot * _RECORD_SIZE
            self._words[source >> 3] = 0  # from now on, `mark` looks in the refuge, and waits for the lock
            self._bytes[target + 8 : target + 128] = self._bytes[source + 8 : source + 128]
            self._words[target >> 3] = number
            self._open[number] = slot + 1

    def _mark_in_refuge(self, number: int, index: int, elapsed_ns: int, how: int) -> None:
        with self._lap_lock:
            location = self._open.get(number, 0)
            if location > 0:
                word = _REFUGE_WORD + (location - 1) * _RECORD_WORDS
                self._words[word + _WORDS_WORD + index] = seals.seal(number, elapsed_ns, how)

    def _clear_in_refuge(self, number: int, index: int) -> None:
        with self._lap_lock:
            location = self._open.get(number, 0)
            if location > 0:
                self._words[_REFUGE_WORD + (location - 1) * _RECORD_WORDS + _WORDS_WORD + index] = 0

    def _release_refuge_slot(self, location: int) -> None:
        word = _REFUGE_WORD + (location - 1) * _RECORD_WORDS
        with self._lap_lock:
            self._words[word] = 0
            self._words[word + 1] = 0  # without the CRC, a flipped bit in the number cannot make the record valid again
            self._free_refuge.append(location - 1)
