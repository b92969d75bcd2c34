"""The job of README's first screen, which hangs in step 5: the storage of rank 2 does not answer."""

import time

import torch
import torch.distributed as dist


def load_batch(step, rank):
    """Return the batch of a rank."""
    if step == 5 and rank == 2:
        time.sleep(600)
    time.sleep(0.02)
    return torch.ones(8)


def main():
    """Train."""
    dist.init_process_group("gloo")
    for step in range(1000):
        batch = load_batch(step, dist.get_rank())
        dist.all_reduce(batch)


main()
