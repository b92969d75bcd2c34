"""Statistics of float8 tensors, for which torch has no `aminmax`, no sums and no norms: by their 256 values.

Seen as integers, positive numbers are in the order of their values and negative ones in the reverse. So two passes over
the memory show the extremes exactly, without a temporary; all else comes from a sample's exact histogram.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Final

import torch

FLOAT8: Final = frozenset(
    {torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
)  # fmt: skip
_NO_NEGATIVE_ZERO: Final = frozenset({torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})
"""Types in which what would be the negative zero is the only value that is not a number."""
_CODES: Final = 256


@dataclass(frozen=True, slots=True)
class Histogram:
    """What is in a sample.

    Attributes:
        mean: Mean of its numbers.
        mean_square: Mean of their squares.
        zeros: How many are zero.
        subnormals: How many are subnormal.
        saturated: How many are the largest finite number of their type, to which casts clip.
    """

    mean: float
    mean_square: float
    zeros: int
    subnormals: int
    saturated: int


def extremes_of_float8(tensor: torch.Tensor) -> tuple[float, float]:
    """Its smallest and largest number; NaN for either if one is not a number. It is not empty."""
    values = _values(tensor.dtype)
    lowest_code, highest_code = (int(one) for one in torch.aminmax(tensor.view(torch.uint8)))
    most_negative, most_positive = (int(one) for one in torch.aminmax(tensor.view(torch.int8)))
    if tensor.dtype in _NO_NEGATIVE_ZERO and most_negative == -_CODES // 2:
        return math.nan, math.nan
    smallest = values[highest_code if most_negative < 0 else lowest_code]
    largest = values[most_positive if most_positive >= 0 else lowest_code]
    return smallest, largest


def histogram_of(sample: torch.Tensor) -> Histogram:
    """What is in a sample of a float8 tensor, which is not empty."""
    values, finfo = _values(sample.dtype), torch.finfo(sample.dtype)
    counted: Any = torch.bincount(sample.flatten().view(torch.uint8), minlength=_CODES)
    counts: list[int] = counted.tolist()
    found = [(abs(value), value, count) for value, count in zip(values, counts, strict=True) if count]
    return Histogram(
        mean=sum(value * count for _, value, count in found) / sample.numel(),
        mean_square=sum(value * value * count for _, value, count in found) / sample.numel(),
        zeros=sum(count for size, _, count in found if size == 0),
        subnormals=sum(count for size, _, count in found if 0 < size < finfo.tiny),
        saturated=sum(count for size, _, count in found if size == finfo.max),
    )


@functools.cache
def _values(dtype: torch.dtype) -> tuple[float, ...]:
    """The numbers of a type, by their code."""
    values: Any = torch.arange(_CODES, dtype=torch.uint8).view(dtype).float()
    return tuple(values.tolist())
