"""Trains on a few numbers; rank 1 is slow, rank 3 differs once, rank 2 is absent for a while, and rank 3 dies."""

import os
import sys
import time

import torch
import torch.distributed as dist

from otel_torchdist import data_wait, mark_step

DIFFERS_AT = 40


def read_shard(seconds: float) -> None:
    """Wait as for storage that does not answer."""
    time.sleep(seconds)


def step(number: int, parameter: torch.Tensor, optimizer: torch.optim.Optimizer, odd: dist.ProcessGroup) -> None:
    """One step of all ranks."""
    rank = dist.get_rank()
    with data_wait():
        time.sleep(0.12 if rank == 1 else 0.01)  # long enough to be seen on a busy machine
    for size in (4, 100_000):
        dist.all_reduce(torch.ones(size))
    gathered = torch.empty(1_000 * dist.get_world_size())
    dist.all_gather_into_tensor(gathered, torch.ones(1_000))
    differs = rank == 3 and number == DIFFERS_AT
    dist.all_reduce(torch.ones(16, dtype=torch.int32 if differs else torch.float32), group=odd)
    parameter.grad = None
    parameter.sum().backward()
    optimizer.step()
    mark_step(samples=4, tokens=400, flops=1e9)


def main(description: str, healthy_s: float, away_s: float, after_s: float) -> None:
    """Run the story."""
    dist.init_process_group("gloo")
    odd = dist.new_group(list(range(dist.get_world_size())), group_desc=description)
    parameter = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    number = 0
    for seconds in (healthy_s, after_s):
        # All ranks stop at the same step, which rank 0 chooses.
        done = torch.zeros(1)
        end = time.monotonic() + seconds
        while not done.item():
            step(number, parameter, optimizer, odd)
            number += 1
            done.fill_(float(time.monotonic() > end))
            dist.broadcast(done, 0)
        if dist.get_rank() == 2 and seconds == healthy_s:
            read_shard(away_s)
    if dist.get_rank() == 3:
        os._exit(9)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
