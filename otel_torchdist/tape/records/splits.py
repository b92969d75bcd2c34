"""Records of the splits of an uneven `all_to_all`: the bytes sent to and expected from each member.

They are written before the operation, so that a reader knows the splits when it reads the operation. Thread and
time of entry identify the operation.
Parts are multiples of a unit, such as a row of the tensor, so that most fit in 16 bits and 16 members need only one
record. In groups of more than `MAX_LISTED` members, only the largest part is recorded.
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
"""Maximum size of a group with listed parts: at most eight records for both directions, if parts are below 65,536
units."""
MAX_THREADS: Final = 4_096

_MAX_UNIT: Final = (1 << 32) - 1
_LETTERS: Final = {2: "H", 4: "I", 8: "Q"}
"""Format character of `struct`, by the width of a part in bytes."""
_UNKNOWN, _EVEN, _LISTED = range(3)
"""Form of the expected parts: unknown, all equal, or listed after the sent parts."""
_KIND: Final = int(RecordKind.SPLITS)
_pack: Final = layout.SPLITS.pack


def pack_splits(
    entered_ns: int, thread: int, parts: Sequence[int], unit: int, received: int, expected: Sequence[int] = ()
) -> list[bytes]:
    """Pack the splits of an operation, for `TapeWriter.write_splits`.

    Args:
        entered_ns: Entry of the operation.
        thread: Native id of the calling thread.
        parts: Parts sent to each member, in units.
        unit: Bytes per unit.
        received: Bytes received in total.
        expected: Parts expected from each member, in units; empty if unknown.

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
        chunk = parts[first : first + room]
        listed = struct.pack(f"={len(chunk)}{letter}", *chunk)
        packed.append(_pack(received, entered_ns, unit, thread, members, first, listed, _KIND, width, form))
    return packed


@dataclass(slots=True)
class _Collected:
    """The parts of one operation read so far. If `members` is 0, `parts` contains only the largest part."""

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
    """Return the number of parts in all records of an operation."""
    return (2 * members if form == _LISTED else members) or 1


class PendingSplits:
    """Splits whose operations have not been read yet."""

    def __init__(self) -> None:
        self._by_thread: dict[int, _Collected] = {}

    def add(self, payload: bytes) -> None:
        """Add one record's payload.

        Raises:
            ValueError: `pack_splits` cannot have written it.
        """
        received, entered_ns, unit, thread, members, first, listed, _, width, form = layout.SPLITS.unpack(payload)
        count = _count(members, form)
        letter = _LETTERS.get(width)
        if letter is None or members > MAX_LISTED or first >= count or received > MAX_NUMBER or form > _LISTED:
            raise ValueError("the form of splits is unknown")
        parts = [
            part * unit for part in struct.unpack_from(f"={min(count - first, len(listed) // width)}{letter}", listed)
        ]
        if max(parts) > MAX_NUMBER:
            raise ValueError("a part has an impossible size")
        if not first:
            if len(self._by_thread) >= MAX_THREADS:
                self._by_thread.clear()
            self._by_thread[thread] = _Collected(entered_ns, received, members, unit, form, parts)
            return
        before = self._by_thread.get(thread)
        if before is not None and before.entered_ns == entered_ns and len(before.parts) == first:
            before.parts += parts

    def take(self, thread: int, entered_ns: int) -> Splits | None:
        """Return the splits of the operation that a thread entered at a given time; None if incomplete."""
        collected = self._by_thread.pop(thread, None)
        return collected.splits if collected is not None and collected.entered_ns == entered_ns else None
