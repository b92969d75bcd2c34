"""A rank of a DDP job that reads batches from workers of a loader, and times each part of its steps by hand.

Says by how much of each step each part differs, as counted and by hand.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from otel_torchdist import data_wait, mark_step
from otel_torchdist.tape.figures import read_figures
from tests.support.ranks.rank import join, own_tape, rank, say, start_capture

STEPS = 24
WIDTH = 512


class Slow(Dataset[torch.Tensor]):
    """Samples that take a while, on rank 1 longer than the step that uses them."""

    def __len__(self) -> int:
        """More than are used."""
        return 1000

    def __getitem__(self, place: int) -> torch.Tensor:
        """Load one."""
        time.sleep(0.02 * (1 + rank()))
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(place))


capture = start_capture()
join()
torch.set_num_threads(1)
torch.manual_seed(0)
# Forked before gloo's threads work, see `tests/jobs/torchrun/workers/train.py`.
batches = iter(DataLoader(Slow(), batch_size=4, num_workers=2, multiprocessing_context="fork"))
layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
own_batches = iter([0.03] * STEPS)
words = own_tape(capture).words


def counted_ns() -> dict[str, int]:
    """What has been counted of each part so far."""
    figures = read_figures(words)
    return {"data": figures.data_wait_ns, "backward": figures.backward_ns, "optimizer": figures.optimizer_ns}


differences: dict[str, list[float]] = {"data": [], "backward": [], "optimizer": []}
for _ in range(STEPS):
    before = counted_ns()
    t0 = time.perf_counter()
    batch = next(batches)
    with data_wait():
        time.sleep(next(own_batches))
    t1 = time.perf_counter()
    loss = model(batch).square().mean()
    time.sleep(0.01)
    t2 = time.perf_counter()
    loss.backward()
    t3 = time.perf_counter()
    optimizer.step()
    t4 = time.perf_counter()
    optimizer.zero_grad()
    mark_step(samples=len(batch), tokens=len(batch) * 7, flops=3e18)
    step_s = time.perf_counter() - t0
    by_hand = {"data": t1 - t0, "backward": t3 - t2, "optimizer": t4 - t3}
    for part, ns in counted_ns().items():
        differences[part].append(((ns - before[part]) / 1e9 - by_hand[part]) / step_s)
figures = read_figures(words)
say(
    differences=differences,
    numbers=[figures.batches, figures.backward_passes, figures.optimizer_steps, figures.samples, figures.tokens],
    flops=figures.flops,
    syncs=figures.syncs_timed,
    sync=[figures.sync_ns, figures.sync_overlap_ns],
)
dist.barrier()
os._exit(0)
