"""Finds in a ring, without reading it record by record, what of it must not be passed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import Word
from otel_torchdist.tape.memory import TapeMemory

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
