"""Confidence intervals of differences of means, by Welch's method on batch means.

Durations of successive steps depend on each other (a busy neighbor slows hundreds in a row), and the calls of all ranks
in one collective are one event. Intervals from single calls would therefore be far too narrow. So each step counts
once, successive steps are averaged in batches, and batches are taken as independent (the method of batch means; Law,
Simulation Modeling and Analysis, chapter 9). Welch's interval allows the two runs to vary differently. It needs no
random numbers, so the same runs always give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, variance
from typing import Final

import msgspec

MAX_BATCHES: Final = 20
"""Batches of a run. More would be shorter, and depend on each other."""
MIN_SAMPLES: Final = 4
"""Steps of each run, or runs of each side, without which no interval is given."""


class MeanDifference(msgspec.Struct, frozen=True):
    """The difference of two means, after minus before, in nanoseconds.

    Attributes:
        ns: The difference.
        low_ns: Lower end of the confidence interval.
        high_ns: Upper end of the confidence interval.
    """

    ns: float
    low_ns: float
    high_ns: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes equality."""
        return self.low_ns > 0 or self.high_ns < 0


def batch_means(values: Sequence[float]) -> list[float]:
    """Return the means of up to `MAX_BATCHES` batches of successive values of equal number; the oldest are left out."""
    size = max(math.ceil(len(values) / MAX_BATCHES), 1)
    count = len(values) // size
    kept = values[len(values) - count * size :]
    return [fmean(kept[index * size : (index + 1) * size]) for index in range(count)]


def welch(before: Sequence[float], after: Sequence[float], confidence: float) -> MeanDifference | None:
    """Return the difference of the means of independent samples; None with fewer than `MIN_SAMPLES` of either."""
    if min(len(before), len(after)) < MIN_SAMPLES:
        return None
    difference = fmean(after) - fmean(before)
    parts = [variance(samples) / len(samples) for samples in (before, after)]
    error = math.sqrt(sum(parts))
    if not error:
        return MeanDifference(difference, difference, difference)
    # The Welch-Satterthwaite equation.
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(samples) - 1) for part, samples in zip(parts, (before, after), strict=True)
    )
    half = student_quantile(confidence, freedom) * error
    return MeanDifference(difference, difference - half, difference + half)


def student_quantile(confidence: float, freedom: float) -> float:
    """Return the half width of the central interval of Student's t distribution, for at least 3 degrees of freedom.

    Hill's approximation (Algorithm 396, Communications of the ACM 13, 1970): its relative error is below 1e-5.
    """
    outside = 1 - confidence
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * outside) ** (2 / freedom)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(outside / 2)
        y = x**2
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y**2)
    else:
        y = (
            (1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3) + 0.5 / (freedom + 4)) * y
            - 1
        ) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)
