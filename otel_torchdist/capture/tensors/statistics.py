"""Computes statistics and checksums of tensors, with torch functions that read memory once, without large temporaries.

`aminmax` propagates NaN and infinities without false alarms. Norms and sums of finite half-precision tensors may be
infinite. Statistics that need temporaries (zeros, subnormal numbers, means of halves) use a sample of 65,536 elements.

torch has no `aminmax`, sums or norms for float8 tensors. Viewed as integers, positive float8 numbers are in the order
of their values, and negative ones in reverse order. So two passes give the exact extremes without temporaries. Other
statistics use the exact histogram of a sample.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from otel_torchdist.model.numerics import NumberFormat

FLOAT8: Final = frozenset(
    {torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
)  # fmt: skip
_NO_NEGATIVE_ZERO: Final = frozenset({torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})
"""Types without negative zero. The code that other types use for negative zero is their only NaN."""
_CODES: Final = 256


@dataclass(frozen=True, slots=True)
class Histogram:
    """The statistics of a sample of a float8 tensor.

    Attributes:
        mean: Mean of its numbers.
        mean_square: Mean of their squares.
        zeros: Number of zeros.
        subnormals: Number of subnormal numbers.
        saturated: Number of elements with the largest finite magnitude, to which casts clip.
    """

    mean: float
    mean_square: float
    zeros: int
    subnormals: int
    saturated: int


def extremes_of_float8(tensor: torch.Tensor) -> tuple[float, float]:
    """Return the smallest and largest number of a non-empty float8 tensor; NaN if it contains NaN."""
    values = _values(tensor.dtype)
    lowest_code, highest_code = (int(code) for code in torch.aminmax(tensor.view(torch.uint8)))
    most_negative, most_positive = (int(code) for code in torch.aminmax(tensor.view(torch.int8)))
    if tensor.dtype in _NO_NEGATIVE_ZERO and most_negative == -_CODES // 2:
        return math.nan, math.nan
    smallest = values[highest_code if most_negative < 0 else lowest_code]
    largest = values[most_positive if most_positive >= 0 else lowest_code]
    return smallest, largest


def histogram_of(sample: torch.Tensor) -> Histogram:
    """Return the statistics of a non-empty sample of a float8 tensor."""
    values, finfo = _values(sample.dtype), torch.finfo(sample.dtype)
    counted: Any = torch.bincount(sample.flatten().view(torch.uint8), minlength=_CODES)
    counts: list[int] = counted.tolist()
    bins = [(abs(value), value, count) for value, count in zip(values, counts, strict=True) if count]
    return Histogram(
        mean=sum(value * count for _, value, count in bins) / sample.numel(),
        mean_square=sum(value * value * count for _, value, count in bins) / sample.numel(),
        zeros=sum(count for size, _, count in bins if size == 0),
        subnormals=sum(count for size, _, count in bins if 0 < size < finfo.tiny),
        saturated=sum(count for size, _, count in bins if size == finfo.max),
    )


@functools.cache
def _values(dtype: torch.dtype) -> tuple[float, ...]:
    """Return the numbers of a type, in the order of their codes."""
    values: Any = torch.arange(_CODES, dtype=torch.uint8).view(dtype).float()
    return tuple(values.tolist())


FLOATING: Final = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Types that `aminmax` supports. For types other than these and `FLOAT8`, nothing is recorded."""
HALVES: Final = frozenset({torch.float16, torch.bfloat16})
SAMPLE: Final = 65_536
BLOCK: Final = 1_024
LANES: Final = 64
_WORD: Final = 8
MASK: Final = (1 << 64) - 1
_FACTOR: Final = 0x9E3779B97F4A7C15
"""Odd, so that multiplication by it is reversible modulo 2^64."""
_SIGN: Final = 1 << 63
_torch: Any = torch
_vector_norm: Final = _torch.linalg.vector_norm


@dataclass(frozen=True, slots=True)
class Extremes:
    """The range of tensors.

    Attributes:
        smallest: The smallest element; NaN if any element is NaN.
        largest: The largest element; NaN if any element is NaN.
        elements: Number of elements.
    """

    smallest: float
    largest: float
    elements: int

    @property
    def is_finite(self) -> bool:
        """Whether all elements are finite."""
        return math.isfinite(self.smallest) and math.isfinite(self.largest)


@dataclass(frozen=True, slots=True)
class Moments:
    """Further statistics of tensors.

    Attributes:
        mean: Their mean; for halves, the mean of the sample.
        norm: Their L2 norm; for float16, extrapolated from the sample.
        zero_share: Share of zeros in the sample.
        subnormal_share: Share of subnormal numbers in the sample.
        saturated_share: For float8, share of elements in the sample with the largest finite magnitude; else None.
    """

    mean: float
    norm: float
    zero_share: float
    subnormal_share: float
    saturated_share: float | None = None


def extremes_of(tensors: Sequence[torch.Tensor]) -> Extremes:
    """Return the range of one or more tensors that `eligible.select_inputs` has selected."""
    smallest, largest, elements = math.inf, -math.inf, 0
    is_nan = False
    for tensor in tensors:
        low, high = _extremes(tensor)
        is_nan = is_nan or math.isnan(low) or math.isnan(high)
        smallest, largest, elements = min(smallest, low), max(largest, high), elements + tensor.numel()
    return Extremes(math.nan, math.nan, elements) if is_nan else Extremes(smallest, largest, elements)


def _extremes(tensor: torch.Tensor) -> tuple[float, float]:
    if tensor.dtype in FLOAT8:
        return extremes_of_float8(tensor)
    low, high = torch.aminmax(tensor)
    return float(low), float(high)


def format_of(tensors: Sequence[torch.Tensor]) -> NumberFormat:
    """Return the number format of tensors, or `UNKNOWN` if they have several."""
    dtypes = {tensor.dtype for tensor in tensors}
    name = str(dtypes.pop()).removeprefix("torch.").upper() if len(dtypes) == 1 else ""
    return NumberFormat[name] if name in NumberFormat.__members__ else NumberFormat.UNKNOWN


def moments_of(tensors: Sequence[torch.Tensor]) -> Moments:
    """Return further statistics of tensors that `eligible.select_inputs` has selected."""
    squares, total, elements = 0.0, 0.0, 0
    zeros, subnormals, saturated, sampled = 0, 0, 0, 0
    for tensor in tensors:
        count, is_half, sample = tensor.numel(), tensor.dtype in HALVES, sample_of(tensor)
        sampled, elements = sampled + sample.numel(), elements + count
        if tensor.dtype in FLOAT8:
            histogram = histogram_of(sample)
            squares, total = squares + histogram.mean_square * count, total + histogram.mean * count
            zeros, subnormals = zeros + histogram.zeros, subnormals + histogram.subnormals
            saturated += histogram.saturated
            continue
        if tensor.dtype is torch.float16:  # its norm may overflow, and takes 40 times as long in float32
            squares += float(sample.float().square().mean()) * count
        else:
            squares += float(_vector_norm(tensor)) ** 2
        total += float(sample.mean(dtype=torch.float32)) * count if is_half else float(tensor.sum())
        magnitude = sample.abs()
        tensor_zeros = int(torch.count_nonzero(magnitude == 0))
        zeros += tensor_zeros
        subnormals += int(torch.count_nonzero(magnitude < torch.finfo(tensor.dtype).tiny)) - tensor_zeros
    is_float8 = all(tensor.dtype in FLOAT8 for tensor in tensors)
    return Moments(
        mean=total / elements,
        norm=math.sqrt(squares),
        zero_share=zeros / sampled,
        subnormal_share=subnormals / sampled,
        saturated_share=saturated / sampled if is_float8 else None,
    )


def sample_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return at most `SAMPLE` elements of a tensor: contiguous blocks, spread evenly."""
    count = tensor.numel()
    if count <= SAMPLE or not is_dense(tensor):
        return tensor.flatten().narrow(0, 0, min(count, SAMPLE))
    blocks = SAMPLE // BLOCK
    stride = (count - BLOCK) // (blocks - 1)
    return tensor.as_strided((blocks, BLOCK), (stride, 1), tensor.storage_offset())


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill a contiguous range of memory, in any order."""
    if tensor.is_contiguous():
        return True
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != extent:
            return False
        extent *= size
    return True


def checksum_of(tensors: Sequence[torch.Tensor]) -> int:
    """Return a checksum of the bits of tensors, the same on every rank. It detects any single flipped bit.

    Each tensor is summed as 64-bit words in 64 lanes, with an odd factor for each, so that swapped parts are detected.
    """
    result = 0
    for tensor in tensors:
        result = (result * _FACTOR + tensor.nbytes * _FACTOR + sum(int(part) for part in _sums(tensor))) & MASK
    return result


def checksum_tensor(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute `checksum_of` as a scalar int64 tensor on the tensors' device, without waiting for it."""
    result = torch.zeros((), dtype=torch.int64, device=tensors[0].device)
    for tensor in tensors:
        result = result * signed(_FACTOR) + signed(tensor.nbytes * _FACTOR)
        for part in _sums(tensor):
            result = result + part
    return result


def _sums(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the weighted sums of a tensor's lanes, and of the remaining bytes, as int64."""
    flat = _in_order(tensor.detach()).view(torch.uint8)
    weights = _weights(tensor.device)
    lane = flat.numel() // (_WORD * LANES) * _WORD
    in_lanes = lane * LANES
    if in_lanes < flat.numel():  # fewer than 512 bytes remain
        remaining = flat.numel() - in_lanes
        yield (flat.narrow(0, in_lanes, remaining) * weights.narrow(0, 0, remaining)).sum()
    if not lane:
        return
    if flat.data_ptr() % _WORD or flat.storage_offset() % _WORD:
        # Words must be aligned, and the sum must not depend on the address: copy one lane at a time.
        pieces = [flat.narrow(0, start, lane).clone().view(torch.int64).sum() for start in range(0, in_lanes, lane)]
        lanes = torch.stack(pieces)
    else:
        lanes = flat.narrow(0, 0, in_lanes).view(torch.int64).view(LANES, -1).sum(1)
    yield (lanes * weights.narrow(0, 0, LANES)).sum()


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements of a tensor in memory order, the order that c10d uses."""
    dense = tensor if is_dense(tensor) else tensor.contiguous()
    return dense.as_strided((dense.numel(),), (1,), dense.storage_offset())


def _weights(device: torch.device) -> torch.Tensor:
    """Return an odd factor for each byte or lane. Not cached on devices, whose streams are not synchronized."""
    return _weights_on_host() if device.type == "cpu" else _make_weights(device)


@functools.cache
def _weights_on_host() -> torch.Tensor:
    return _make_weights(torch.device("cpu"))


def _make_weights(device: torch.device) -> torch.Tensor:
    return torch.arange(1, LANES * _WORD + 1, device=device, dtype=torch.int64).mul_(signed(_FACTOR)).bitwise_or_(1)


def signed(value: int) -> int:
    """Convert 64 bits to an int64."""
    value &= MASK
    return value - (value & _SIGN) * 2
