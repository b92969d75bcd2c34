"""Amounts that an uneven `all_to_all` sends to and expects from each member: records directly before the operation.

So a reader knows how an operation is split before it can see its end. They belong to the operation of the same thread
and time of entry. Parts are counted in units of so many bytes, such as a row of the tensor, because most then fit in
16 bits: those of 16 members take one record. In groups of more than `MAX_LISTED` members only the largest is recorded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.operations import Splits
from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import MAX_NUMBER

MAX_LISTED: Final = 64
"""Members whose parts are listed: at most eight records for both directions, of parts below 65,536 units."""
MAX_THREADS: Final = 4_096

_MAX_UNIT: Final = (1 << 32) - 1
_LETTERS: Final = {2: "H", 4: "I", 8: "Q"}
"""Width of a part in bytes, and how it is packed."""
_UNKNOWN, _EVEN, _LISTED = range(3)
"""How a record tells what is expected of each member: not at all, as equal parts, or listed after what is sent."""
_KIND: Final = int(RecordKind.SPLITS)
_pack: Final = layout.SPLITS.pack


def pack_splits(
    entered_ns: int, thread: int, parts: Sequence[int], unit: int, received: int, expected: Sequence[int] = ()
) -> list[bytes]:
    """Pack how an operation is split, for `TapeWriter.write_splits`.

    Args:
        entered_ns: When the operation is entered.
        thread: Native id of the calling thread.
        parts: What this rank sends to each member, in units.
        unit: Bytes in a unit.
        received: Bytes that it receives.
        expected: What it expects from each member, in units; empty if that is not known.

    Raises:
        struct.error: A value does not fit.
    """
    largest = max(parts)
    if unit > _MAX_UNIT:
        parts, largest, unit = [part * unit for part in parts], largest * unit, 1
        expected = ()
    members, form = len(parts), _UNKNOWN
    if members > MAX_LISTED:
        parts, members = (largest,), 0
    elif expected and len(expected) == members:
        form = _EVEN if expected.count(expected[0]) == members else _LISTED
        if form == _LISTED:
            parts, largest = [*parts, *expected], max(largest, *expected)
    width = 2 if largest < 1 << 16 else 4 if largest < 1 << 32 else 8
    letter, room = _LETTERS[width], layout.SPLITS_BYTES // width
    packed: list[bytes] = []
    for first in range(0, len(parts), room):
        some = parts[first : first + room]
        listed = struct.pack(f"={len(some)}{letter}", *some)
        packed.append(_pack(received, entered_ns, unit, thread, members, first, listed, _KIND, width, form))
    return packed


@dataclass(slots=True)
class _Collected:
    """Parts of one operation, as far as they have been read; of others than listed members, the largest part."""

    entered_ns: int
    received: int
    members: int
    unit: int
    form: int
    parts: list[int] = field(default_factory=list[int])

    @property
    def splits(self) -> Splits | None:
        """The splits; None if parts are missing."""
        parts, members = self.parts, self.members
        if len(parts) != _count(members, self.form):
            return None
        sent = tuple(parts[:members])
        if self.form == _EVEN and members:
            expected = (self.received // members,) * members
        else:
            expected = tuple(parts[members:]) if members else ()
        return Splits(sent, max(sent or parts), self.received, expected, self.unit)


def _count(members: int, form: int) -> int:
    """Return the number of parts that the records of an operation hold together."""
    return (2 * members if form == _LISTED else members) or 1


class PendingSplits:
    """Splits whose operation has not been read yet."""

    def __init__(self) -> None:
        self._by_thread: dict[int, _Collected] = {}

    def add(self, payload: bytes) -> None:
        """Take one record's payload.

        Raises:
            ValueError: It is not what `pack_splits` makes.
        """
        received, entered_ns, unit, thread, members, first, listed, _, width, form = layout.SPLITS.unpack(payload)
        count = _count(members, form)
        letter = _LETTERS.get(width)
        if letter is None or members > MAX_LISTED or first >= count or received > MAX_NUMBER or form > _LISTED:
            raise ValueError("splits of an unknown form")
        parts = [
            part * unit for part in struct.unpack_from(f"={min(count - first, len(listed) // width)}{letter}", listed)
        ]
        if max(parts) > MAX_NUMBER:
            raise ValueError("parts of an impossible size")
        if not first:
            if len(self._by_thread) >= MAX_THREADS:
                self._by_thread.clear()
            self._by_thread[thread] = _Collected(entered_ns, received, members, unit, form, parts)
            return
        before = self._by_thread.get(thread)
        if before is not None and before.entered_ns == entered_ns and len(before.parts) == first:
            before.parts += parts

    def take(self, thread: int, entered_ns: int) -> Splits | None:
        """Return how the operation is split that a thread entered at some time; None if that was not read whole."""
        found = self._by_thread.pop(thread, None)
        return found.splits if found is not None and found.entered_ns == entered_ns else None
