"""How often a rank must halve its steps to stay within its budget of spans per second."""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 5.0
SHORTEST_S: Final = 1.0
"""A burst is met no sooner: its rate over less than this says little."""
SLACK: Final = 0.8
MAX_HALVINGS: Final = 32


class SpanBudget:
    """Measures what would be exported without a budget, in windows of 5 s of the rank's own time.

    It halves as often as needed as soon as a window is over the budget, and takes back one halving a window only when
    the result would stay clearly (20 %) below it: otherwise it would swing.

    Attributes:
        halvings: Of 2^halvings steps, one is exported.
    """

    def __init__(self, spans_per_second: int) -> None:
        """Nothing has been measured: everything is exported."""
        self.halvings = 0
        self._limit = spans_per_second
        self._spans = 0
        self._since_ns: int | None = None

    def count(self, spans: int) -> None:
        """Count spans, exported or not, that would be exported without a budget."""
        self._spans += spans

    def turn(self, at_ns: int) -> None:
        """A step begins: the only moment at which `halvings` changes."""
        if self._since_ns is None:
            self._since_ns = at_ns
            return
        elapsed_s = (at_ns - self._since_ns) / 1e9
        if elapsed_s < (WINDOW_S if self._spans <= self._limit * WINDOW_S else SHORTEST_S):
            return
        rate = self._spans / elapsed_s
        self._since_ns = at_ns
        self._spans = 0
        needed = self._halvings_for(rate)
        if needed > self.halvings:
            self.halvings = needed
        elif self.halvings and rate / 2 ** (self.halvings - 1) <= SLACK * self._limit:
            self.halvings -= 1

    def _halvings_for(self, rate: float) -> int:
        halvings = 0
        while rate / 2**halvings > self._limit and halvings < MAX_HALVINGS:
            halvings += 1
        return halvings
