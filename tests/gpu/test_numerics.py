"""Looking at values on a real device: nothing waits for it, and what is found is what the host would find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.capture.tensors.numerics import NumericsObserver
from otel_torchdist.capture.tensors.statistics import checksum_of, extremes_of
from otel_torchdist.config import NumericsMode
from otel_torchdist.model.numerics import Numerics
from otel_torchdist.tape.records.numerics import checksum_word
from tests.gpu.world import DEVICE, World, begin_world, end_world

WARM_UP = 5
"""Steps in which DDP itself waits: it rebuilds its buckets."""
STEPS = 5


@pytest.fixture
def looking(folder: Path) -> Iterator[World]:
    """A world of one that looks at everything, and compares parameters before each step."""
    one = begin_world(folder, observers=Observers(numerics=NumericsObserver(NumericsMode.ALL, 1), compare_parameters=1))
    yield one
    end_world(one)


class Found:
    """What is known by now of the values in records that come after those of now."""

    def __init__(self, world: World) -> None:
        recorder = world.capture.current_recorder()
        assert recorder is not None
        self._world = world
        self._first = recorder.tape.next_number()  # the last record may be one of parameters, and not filled in yet
        self._known: dict[int, Numerics] = {}

    def all_of(self, count: int) -> list[Numerics]:
        """So many records in their order, once all is known of them."""
        self._world.until(lambda: self._read() == count)
        return [self._known[number] for number in sorted(self._known)]

    def _read(self) -> int:
        found = {one.number: one for one in self._world.reader.poll().numerics if one.number >= self._first}
        self._known.update(found)
        return sum(not one.is_pending and one.output_checksum is not None for one in self._known.values())


def test_training_never_waits_for_the_device(looking: World) -> None:
    """With torch's own check that raises where the host would wait, and all values come nevertheless."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 64, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        dist.all_reduce(torch.ones(1 << 16, device=DEVICE, dtype=torch.float16))
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    found = Found(looking)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(STEPS):
            step()
        with pytest.raises(RuntimeError, match="synchroniz"):
            batch.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    values = found.all_of(3 * STEPS)
    assert len([one for one in values if one.parameters is not None]) == STEPS
    assert len([one for one in values if one.parameters is None]) == 2 * STEPS, "a bucket, and one more, in each"
    assert all(one.is_finite for one in values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_those_of_the_host(looking: World, dtype: torch.dtype) -> None:
    """Extremes and checksums bit by bit; and a NaN that the program overwrites at once."""
    found = Found(looking)
    host = torch.randn(70_001).to(dtype)
    tensor = host.to(DEVICE)
    dist.all_reduce(tensor)
    tensor[3] = float("nan")
    dist.all_reduce(tensor)
    tensor.zero_()
    torch.cuda.synchronize()
    healthy, bad = found.all_of(2)
    extremes = extremes_of([host])
    assert (healthy.smallest, healthy.largest) == pytest.approx((extremes.smallest, extremes.largest), rel=1e-6)
    assert healthy.input_checksum == healthy.output_checksum == checksum_word(checksum_of([host]))
    assert (healthy.is_finite, bad.is_finite) == (True, False)
