"""Computes statistics of tensors on CUDA devices: on the caller's stream, and read by our thread once they arrive.

Kernels are only enqueued, without synchronization: no element is read, no shape depends on values, and nothing is
copied from the host. A row of results has 64 bits for each value: `_EXTREMES`, and for sampled inputs `_MOMENTS` and
the checksum.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from otel_torchdist.capture.core.cuda.readings import Reading
from otel_torchdist.capture.tensors.statistics import HALVES, MASK, checksum_tensor, sample_of, signed
from otel_torchdist.model.numerics import Unseen
from otel_torchdist.tape.records.numerics import (
    FACTORS,
    SUM_MASK,
    WORDS,
    NumericsWord,
    checksum_word,
    float_word,
    index_bits,
    locate_sum,
)

if TYPE_CHECKING:
    from otel_torchdist.capture.core.c10d.devices import DeviceOperations

_torch: Any = torch
_vector_norm: Final = _torch.linalg.vector_norm
_EXTREMES: Final = struct.Struct("=2d")
_MOMENTS: Final = struct.Struct("=4d")
_CHECKSUM: Final = struct.Struct("=Q")
_PARAMETERS: Final = struct.Struct(f"={1 + WORDS}q")
"""Layout of the longest row."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The element counts of inputs, which the host knows.

    Attributes:
        elements: Number of elements.
        sampled: Number of elements in the sample.
    """

    elements: int
    sampled: int


def row_of_inputs(tensors: Sequence[torch.Tensor], is_sampled: bool) -> tuple[torch.Tensor, Counts]:
    """Enqueue the statistics of an operation's inputs. Return a row on their device."""
    parts = [torch.stack([extreme.double() for extreme in torch.aminmax(tensor)]) for tensor in tensors]
    elements = sum(tensor.numel() for tensor in tensors)
    if not is_sampled:
        return _extremes(parts).view(torch.int64), Counts(elements, 0)
    with _without_autocast(tensors[0].device.type):
        samples = [sample_of(tensor) for tensor in tensors]
        moments = torch.stack([_moments(tensor, sample) for tensor, sample in zip(tensors, samples, strict=True)]).sum(
            0
        )
        checksum = checksum_tensor(tensors)
    row = torch.cat([_extremes(parts).view(torch.int64), moments.view(torch.int64), checksum.view(1)])
    return row, Counts(elements, sum(sample.numel() for sample in samples))


def row_of_outputs(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Enqueue the checksum of outputs."""
    return checksum_tensor(tensors).view(1)


def row_of_parameters(tensors: Sequence[torch.Tensor], salts: Sequence[int]) -> torch.Tensor:
    """Enqueue the checksums of parameters, combined as by `sum_checksums`: the total, and the words."""
    pairs = zip(tensors, salts, strict=True)
    value = torch.stack([checksum_tensor([tensor]) + signed((salt + 1) * FACTORS[0]) for tensor, salt in pairs])
    for shift, factor in ((30, FACTORS[1]), (27, FACTORS[2])):
        value = (value ^ _shifted(value, shift)) * signed(factor)
    value = value ^ _shifted(value, 31)
    indices = torch.arange(len(tensors), dtype=torch.int64, device=value.device)
    bits = index_bits(len(tensors))
    words = [torch.zeros((), dtype=torch.int64, device=value.device) for _ in range(WORDS)]
    for bit in range(bits):
        word, shift, modulus = locate_sum(bit, bits)
        part = (value * (indices >> bit & 1)).sum() & (modulus - 1)
        words[word] = words[word] + (part << shift)
    return torch.stack([value.sum() & SUM_MASK, *words])


def parameters_in(row: bytes) -> tuple[int, tuple[int, ...]]:
    """Return the total and the words in a row from the device."""
    total, *words = _PARAMETERS.unpack(row)
    return total, tuple(words)


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift 64-bit words to the right, without sign extension."""
    return value >> bits & ((1 << 64 - bits) - 1)


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Disable autocast, which would copy whole half-precision tensors to float32 for a norm."""
    is_on = torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if is_on else contextlib.nullcontext()


def _extremes(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Combine the extremes of several tensors; NaN if any is NaN."""
    if len(parts) == 1:
        return parts[0]
    smallest, largest = torch.stack(list(parts)).unbind(1)
    return torch.stack([smallest.amin(), largest.amax()])


def _moments(tensor: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    """Return sum, sum of squares, and the numbers of zeros and subnormal numbers in the sample."""
    count = tensor.numel()
    if tensor.dtype is torch.float16:
        squares = sample.float().square().mean().double() * count
    else:
        squares = _vector_norm(tensor).double().square()
    total = sample.mean(dtype=torch.float32).double() * count if tensor.dtype in HALVES else tensor.sum().double()
    magnitude = sample.abs()
    is_zero, is_tiny = magnitude == 0, magnitude < torch.finfo(tensor.dtype).tiny
    zeros = is_zero.sum().double()
    return torch.stack([total, squares, zeros, is_tiny.sum().double() - zeros])


def words_of_inputs(row: bytes, counts: Counts) -> dict[int, int]:
    """Return the words of a record from a row from the device, with the extremes last."""
    smallest, largest = _EXTREMES.unpack_from(row)
    if math.isnan(smallest) or math.isnan(largest):
        smallest = largest = math.nan
    if not counts.sampled:
        return {NumericsWord.SMALLEST: float_word(smallest), NumericsWord.LARGEST: float_word(largest)}
    total, squares, zeros, subnormals = _MOMENTS.unpack_from(row, _EXTREMES.size)
    (checksum,) = _CHECKSUM.unpack_from(row, _EXTREMES.size + _MOMENTS.size)
    return {
        NumericsWord.MEAN: float_word(total / counts.elements),
        NumericsWord.NORM: float_word(math.sqrt(squares)),
        NumericsWord.INPUT_CHECKSUM: checksum_word(checksum & MASK),
        NumericsWord.SMALLEST: float_word(smallest, zeros / counts.sampled),
        NumericsWord.LARGEST: float_word(largest, subnormals / counts.sampled),
    }


def checksum_in(row: bytes) -> int:
    """Return a record's word for the checksum of outputs."""
    return checksum_word(_CHECKSUM.unpack_from(row)[0])


MAX_TENSORS: Final = 64
"""Maximum number of tensors of an operation: each costs the host several kernel launches."""


class DeviceValues:
    """The computation of statistics on devices.

    The kernels run on the operation's streams: inputs are read on the stream that the operation waits for, outputs on
    the stream that waited for it. The allocator knows these streams, so it does not reuse the memory before our kernels
    have run. Recording another stream would keep the memory longer.
    """

    def __init__(self, find_cuda: Callable[[], DeviceOperations | None]) -> None:
        """Initialize with `find_cuda`, which returns the follower of CUDA operations, or None."""
        self._find_cuda = find_cuda

    def inputs(self, tensors: Sequence[torch.Tensor], is_sampled: bool) -> tuple[Reading, Counts] | Unseen:
        """Enqueue the statistics of inputs that `eligible.select_inputs` has selected."""
        counts: list[Counts] = []

        def row() -> torch.Tensor:
            values, count = row_of_inputs(tensors, is_sampled)
            counts.append(count)
            return values

        reading = self._enqueue(tensors, row)
        return reading if isinstance(reading, Unseen) else (reading, counts[0])

    def outputs(self, tensors: Sequence[torch.Tensor]) -> Reading | Unseen:
        """Enqueue the checksum of outputs."""
        return self._enqueue(tensors, lambda: row_of_outputs(tensors))

    def parameters(self, tensors: Sequence[torch.Tensor], salts: Sequence[int]) -> Reading | Unseen:
        """Enqueue the checksums of parameters; see `row_of_parameters`."""
        return self._enqueue(tensors, lambda: row_of_parameters(tensors, salts), max_tensors=len(tensors))

    def read(self, reading: Reading, arrived: Callable[[bytes], object]) -> None:
        """Call a function with a result, on our thread, once it arrives."""
        cuda = self._find_cuda()
        if cuda is not None:
            reading.arrived = arrived
            cuda.read(reading)

    def _enqueue(
        self, tensors: Sequence[torch.Tensor], row_of: Callable[[], torch.Tensor], max_tensors: int = MAX_TENSORS
    ) -> Reading | Unseen:
        cuda = self._find_cuda()
        if cuda is None:
            return Unseen.DEVICE
        if len(tensors) > max_tensors:
            return Unseen.FULL
        reading: Reading | Unseen = cuda.room_for_reading(tensors[0].get_device())
        if isinstance(reading, Unseen):
            return reading
        is_copied: Any = None
        try:
            row = row_of()
            is_copied = cuda.copy(reading, row.data_ptr(), row.nbytes)
        finally:
            if is_copied is None:
                cuda.give_back(reading)
        return reading if is_copied else Unseen.DEVICE
