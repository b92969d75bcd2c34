"""Finds what is wrong with values, at bounded cost and a bounded number of times."""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.stall.findings.diverged import Diverged, DivergenceFinder
from otel_torchdist.stall.findings.non_finite import NonFinite, NonFiniteFinder

PASSES_APART_NS: Final = 1_000_000_000
MAX_REPORTED: Final = 16
"""Findings about values in a run; more would add no information."""


class ValueFinder:
    """Compares the values of one run's ranks."""

    def __init__(self) -> None:
        self._non_finite = NonFiniteFinder()
        self._diverged = DivergenceFinder()
        self._compared_ns = 0
        self._reported = 0

    def find(self, world: WorldSnapshot, is_last: bool = False) -> list[NonFinite | Diverged]:
        """Return what to report now; at the end of the run nothing is waited for."""
        if not is_last and world.taken_ns - self._compared_ns < PASSES_APART_NS:
            return []
        self._compared_ns = world.taken_ns
        found = [*self._non_finite.find(world, is_last), *self._diverged.find(world, is_last)]
        found = found[: MAX_REPORTED - self._reported]
        self._reported += len(found)
        return found
