"""The types of floating numbers whose range is narrow enough to matter, and the largest number of each."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final


class NumberFormat(enum.IntEnum):
    """A type of number, as it is recorded; its name in lower case is torch's."""

    UNKNOWN = 0
    """Another type, or several."""
    FLOAT16 = 1
    BFLOAT16 = 2
    FLOAT32 = 3
    FLOAT8_E4M3FN = 4
    FLOAT8_E5M2 = 5
    FLOAT8_E4M3FNUZ = 6
    FLOAT8_E5M2FNUZ = 7


LARGEST: Final[Mapping[int, float]] = {
    NumberFormat.FLOAT16: 65_504.0,
    NumberFormat.BFLOAT16: 3.3895313892515355e38,
    NumberFormat.FLOAT32: 3.4028234663852886e38,
    NumberFormat.FLOAT8_E4M3FN: 448.0,
    NumberFormat.FLOAT8_E5M2: 57_344.0,
    NumberFormat.FLOAT8_E4M3FNUZ: 240.0,
    NumberFormat.FLOAT8_E5M2FNUZ: 57_344.0,
}
"""The largest finite number of each."""


def headroom(number_format: int, magnitude: float) -> float | None:
    """How often a magnitude could be doubled before it overflowed its type; None if that is not known."""
    largest = LARGEST.get(number_format)
    if largest is None or not 0.0 < magnitude < math.inf:
        return None
    return math.log2(largest / magnitude)
