"""Operations on a simulated device with synchronized timing.

Reports the number of synchronizations and the durations.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.capture.tensors.observed import ObservedCalls
from tests.support.devices.simulated_cuda import MAIN_STREAM, NCCL_STREAM, SimulatedCuda
from tests.support.ranks.rank import part_of, say, start_capture

MS = 1_000_000
warnings.simplefilter("ignore")
capture = start_capture(observers=Observers(synchronizes=True))
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
cuda = SimulatedCuda(capture, Path(sys.argv[1]))
cuda.device.use_stream(MAIN_STREAM)
ones = cuda.tensor()
synchronized: list[int] = []


def synchronize(device: int) -> None:
    """Wait for the device, as CUDA would."""
    synchronized.append(device)
    for stream in (MAIN_STREAM, NCCL_STREAM):
        last = cuda.device.last(stream)
        while last is not None and not cuda.device.is_over(last):
            time.sleep(0.0005)


def computation_before() -> None:
    """Enqueue the collective behind a kernel of the program."""
    cuda.device.launch(MAIN_STREAM, 400 * MS)
    dist.all_reduce(ones)


def asynchronous() -> None:
    """Issue an asynchronous collective, which is over when the call returns."""
    dist.all_reduce(ones, async_op=True)
    assert cuda.device.is_over(cuda.ran[-1].kernel)


def messages() -> None:
    """Send and receive, which could deadlock with synchronization."""
    dist.isend(ones, 1)
    dist.irecv(ones, 1)


def coalesced() -> None:
    """Issue a coalesced block."""
    group: Any = dist.group.WORLD
    group._start_coalescing(torch.device("cuda"))
    dist.all_reduce(ones)
    group._end_coalescing(torch.device("cuda"))


def in_graph() -> None:
    """Issue while a graph is captured."""
    cuda.device.capturing.add(MAIN_STREAM)
    dist.all_reduce(ones)
    cuda.device.capturing.clear()


def on_host() -> None:
    """Reduce a tensor on the CPU."""
    dist.all_reduce(torch.ones(3))


def main() -> None:
    """Go through the parts."""
    observed: Any = part_of(capture, ObservedCalls)
    observed._synchronizer._synchronize = synchronize
    observed._synchronizer._is_capturing = lambda: MAIN_STREAM in cuda.device.capturing
    cuda.lasts_ns = 5 * MS
    parts: tuple[Callable[[], None], ...] = (computation_before, asynchronous, messages, on_host, in_graph, coalesced)
    counts: dict[str, int] = {}
    for part in parts:
        before = len(synchronized)
        try:
            part()
        except RuntimeError as error:  # the fake backend may not coalesce
            say(part=part.__name__, error=str(error))
        counts[part.__name__] = len(synchronized) - before
    cuda.until_over()
    say(counts=counts)


main()
