"""The median and the spread of a figure's rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure measured in several rounds.

    Attributes:
        median: Median of the rounds.
        low: First quartile.
        high: Third quartile.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Spread:
        """Summarize at least two rounds."""
        low, median, high = statistics.quantiles(rounds, n=4, method="inclusive")
        return cls(median, low, high)

    def blur(self, rounds: int) -> float:
        """Return twice the standard error of the median over `rounds` rounds, assuming a normal distribution."""
        return 2 * 1.25 * (self.high - self.low) / 1.35 / rounds**0.5

    def __str__(self) -> str:
        return format(self)

    def __format__(self, spec: str) -> str:
        spec = spec or ".1f"
        return f"{self.median:{spec}}±{(self.high - self.low) / 2:{spec}}"
