"""Trains on one or two nodes under torchrun's elastic launcher, and goes on when a node is lost.

On each node: `torchrun --nnodes 1:2 --nproc-per-node 1 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint node1:29400
train.py`.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def load_batch(step: int, late_s: float) -> torch.Tensor:
    """Return a batch, `late_s` too late in step 3."""
    if step == 3:
        time.sleep(late_s)
    return torch.full((4, 8), float(step))


def main() -> None:
    """Train for a few steps; the world may be smaller after a restart."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--step-s", type=float, default=0.0, help="length of a step")
    parser.add_argument("--late-rank", type=int, default=-1, help="rank that loads a batch too late")
    parser.add_argument("--late-s", type=float, default=30.0, help="by how many seconds")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"rank {rank} of {size} begins (restarts: {restart})", flush=True)
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loss = torch.zeros(())
    for step in range(options.steps):
        batch = load_batch(step, options.late_s if rank == options.late_rank else 0.0)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        print(f"rank {rank} of {size} has ended step {step}", flush=True)
        time.sleep(options.step_s)
    dist.barrier()
    print(f"rank {rank} of {size} has finished: loss {loss.item() / size:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
