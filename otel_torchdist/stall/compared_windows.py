"""Windows of calls of one lane, as far as they are known of each rank: of other nodes' ranks often the digest only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_torchdist.stall.world import Arrival, Window

MAX_NUMBERS: Final = 64
"""Ranks of other nodes are some seconds old when they are seen."""


class ComparedWindows:
    """Remembers digests, and the calls themselves where digests differ."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._digests: dict[int, dict[int, int]] = {}
        self._calls: dict[tuple[int, int], tuple[Arrival, ...]] = {}
        self._settled: dict[int, frozenset[int]] = {}

    def add(self, rank: int, windows: Iterable[Window]) -> None:
        """Take in what is known of a rank."""
        for window in windows:
            of = self._digests.setdefault(window.number, {})
            of[rank] = window.digest
            # Of each digest one is enough: ranks with the same digest have called the same.
            if window.arrivals:
                self._calls[window.number, window.digest] = window.arrivals
        while len(self._digests) > MAX_NUMBERS:
            oldest = min(self._digests)
            for digest in set(self._digests.pop(oldest).values()):
                self._calls.pop((oldest, digest), None)
            self._settled.pop(oldest, None)

    def settle(self, number: int) -> None:
        """Its calls have been compared: digests differ more easily than calls do."""
        self._settled[number] = frozenset(self._digests[number].values())

    @property
    def first_odd(self) -> int | None:
        """The first window in which ranks differ, and that has not been compared; None when there is none."""
        odd = (number for number, of in self._digests.items() if self._is_odd(number, set(of.values())))
        return min(odd, default=None)

    def _is_odd(self, number: int, digests: set[int]) -> bool:
        return len(digests) > 1 and not digests <= self._settled.get(number, frozenset())

    def calls_in(self, number: int) -> Mapping[int, tuple[Arrival, ...]] | None:
        """By rank, what was called in a window; None as long as it is not known of all."""
        of = self._digests[number]
        if any((number, digest) not in self._calls for digest in of.values()):
            return None
        return {rank: self._calls[number, digest] for rank, digest in of.items()}
