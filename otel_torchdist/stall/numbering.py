"""Numbers that only ever grow, also from one watching process to the next, without a word between them.

Ids of markers and of an incident's bars are hashes over such numbers, and no span id may leave twice. Whoever has
watched an operation from its start counts 1, 2, 3, … A process that takes over meanwhile cannot know how far its
predecessor came, and goes on from the operation's age in milliseconds. The predecessor cannot have come that far:
it counted from 1, or from an earlier age, and at most once a look, which is never twice within a millisecond.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

MAX_REMEMBERED: Final = 16_384

K = TypeVar("K", bound=Hashable)


class Numbering(Generic[K]):
    """Counts for each of many things."""

    def __init__(self, watching_since_ns: int) -> None:
        """Count from 1 what began after `watching_since_ns`, the monotonic time at which this process began."""
        self._watching_since_ns = watching_since_ns
        self._last: dict[K, int] = {}

    def last(self, key: K) -> int | None:
        """The last number given to `key`."""
        return self._last.get(key)

    def following(self, key: K, began_ns: int, now_ns: int) -> int:
        """The number that comes next, without taking it.

        Args:
            key: What is counted.
            began_ns: When the operation in question began.
            now_ns: Monotonic time.
        """
        last = self._last.get(key)
        if last is not None:
            return last + 1
        return 1 if began_ns >= self._watching_since_ns else (now_ns - began_ns) // 1_000_000 + 1

    def take(self, key: K, number: int, now_ns: int) -> None:
        """Remember that `key` has this number now."""
        self._last.pop(key, None)
        self._last[key] = number
        if len(self._last) > MAX_REMEMBERED:
            del self._last[next(iter(self._last))]
            # What has been forgotten is numbered as if somebody else had counted it.
            self._watching_since_ns = now_ns
