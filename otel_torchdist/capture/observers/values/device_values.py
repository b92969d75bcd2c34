"""Values of tensors on CUDA devices: computed on the caller's stream, and read by our thread when they have arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from otel_torchdist.capture.cuda.readings import Reading
from otel_torchdist.capture.observers.values.device_statistics import (
    Counts,
    row_of_inputs,
    row_of_outputs,
    row_of_parameters,
)
from otel_torchdist.model.numerics import Unseen

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.devices import DeviceOperations

MAX_TENSORS: Final = 64
"""Of an operation; each costs the host some launches. Parameters are looked at in few steps."""


class DeviceValues:
    """Enqueues what is to be known of tensors.

    The kernels run where the operation's own place is: inputs are read on the stream on which the operation waits for
    them, outputs on the stream that has waited for it. Both are in use there, so their memory is not given to anyone
    else before our kernels have run, and no further stream has to be recorded with the allocator, which would keep it
    for longer.
    """

    def __init__(self, find_cuda: Callable[[], DeviceOperations | None]) -> None:
        """Initialize; `find_cuda` returns what follows operations on devices, if anything does."""
        self._find_cuda = find_cuda

    def inputs(self, tensors: Sequence[torch.Tensor], is_sampled: bool) -> tuple[Reading, Counts] | Unseen:
        """Enqueue what describes the inputs of an operation; see `eligible.sort`."""
        counts: list[Counts] = []

        def row() -> torch.Tensor:
            found, count = row_of_inputs(tensors, is_sampled)
            counts.append(count)
            return found

        reading = self._enqueue(tensors, row)
        return reading if isinstance(reading, Unseen) else (reading, counts[0])

    def outputs(self, tensors: Sequence[torch.Tensor]) -> Reading | Unseen:
        """Enqueue the checksum of outputs."""
        return self._enqueue(tensors, lambda: row_of_outputs(tensors))

    def parameters(self, tensors: Sequence[torch.Tensor], salts: Sequence[int]) -> Reading | Unseen:
        """Enqueue the checksums of parameters; see `row_of_parameters`."""
        return self._enqueue(tensors, lambda: row_of_parameters(tensors, salts), most=len(tensors))

    def read(self, reading: Reading, arrived: Callable[[bytes], object]) -> None:
        """Have a function called with a result, on our thread, when it has arrived."""
        cuda = self._find_cuda()
        if cuda is not None:
            reading.arrived = arrived
            cuda.read(reading)

    def _enqueue(
        self, tensors: Sequence[torch.Tensor], row_of: Callable[[], torch.Tensor], most: int = MAX_TENSORS
    ) -> Reading | Unseen:
        cuda = self._find_cuda()
        if cuda is None:
            return Unseen.DEVICE
        if len(tensors) > most:
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
