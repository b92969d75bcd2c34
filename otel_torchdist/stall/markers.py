"""When a stalled operation shows a sign of life: at the threshold, then each time its age has doubled.

An operation that is known to wait for a rank that will not come shows one at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from otel_torchdist.stall.numbering import Numbering
from otel_torchdist.stall.waits import Wait

MAX_PER_RANK: Final = 16
"""Operations of one rank that get markers, the oldest first."""


class MarkerClock:
    """Knows for each stalled operation at which age its next marker is due."""

    def __init__(self, threshold_ns: int, watching_since_ns: int) -> None:
        """The first marker is due at `threshold_ns`."""
        self._threshold_ns = threshold_ns
        self._next_ns: dict[tuple[int, int], int] = {}
        self._numbering: Numbering[tuple[int, int]] = Numbering(watching_since_ns)

    def has_marked(self, wait: Wait) -> bool:
        """Whether a wait has had a marker."""
        return wait.key in self._next_ns

    def due(self, stalled: Iterable[Wait], now_ns: int, at_once: Iterable[Wait] = ()) -> list[tuple[Wait, int]]:
        """The waits whose marker is due, each with the marker's number.

        Args:
            stalled: Waits beyond the threshold.
            now_ns: Monotonic time.
            at_once: Waits whose first marker is due whatever their age.
        """
        early = {wait.key for wait in at_once if not self.has_marked(wait)}
        waits = {wait.key: wait for wait in (*stalled, *at_once)}
        found: list[tuple[Wait, int]] = []
        ranks: Counter[int] = Counter()
        for wait in sorted(waits.values(), key=lambda wait: wait.since_ns):
            ranks[wait.view.nonce] += 1
            age_ns = now_ns - wait.since_ns
            next_ns = 0 if wait.key in early else self._next_ns.get(wait.key, self._threshold_ns)
            if ranks[wait.view.nonce] > MAX_PER_RANK or age_ns < next_ns:
                continue
            self._next_ns[wait.key] = next_doubling(self._threshold_ns, age_ns)
            number = self._numbering.following(wait.key, wait.since_ns, now_ns)
            self._numbering.take(wait.key, number, now_ns)
            found.append((wait, number))
        return found

    def forget_all_but(self, waits: Iterable[Wait]) -> None:
        """Drop what is over."""
        open_keys = {wait.key for wait in waits}
        self._next_ns = {key: next_ns for key, next_ns in self._next_ns.items() if key in open_keys}


def next_doubling(threshold_ns: int, age_ns: int) -> int:
    """The first of `threshold_ns` times 1, 2, 4, … that is greater than `age_ns`."""
    next_ns = threshold_ns
    while next_ns <= age_ns:
        next_ns *= 2
    return next_ns
