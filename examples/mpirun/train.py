"""Trains with DDP on ranks that Open MPI starts: `mpirun -np 2 --tag-output python train.py`.

Open MPI tells each process its rank in variables of its own. torch's `env://` wants others, and an address.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def set_variables_of_torch() -> None:
    """Translate Open MPI's variables. On several nodes pass the address: `mpirun -x MASTER_ADDR=node1`."""
    os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
    os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
    os.environ["LOCAL_RANK"] = os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")


def load_batch(step: int, late_s: float) -> torch.Tensor:
    """Return a batch, `late_s` too late in step 3."""
    if step == 3:
        time.sleep(late_s)
    return torch.full((4, 8), float(step))


def main() -> None:
    """Train for a few steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--late-rank", type=int, default=-1, help="rank that loads a batch too late")
    parser.add_argument("--late-s", type=float, default=30.0, help="by how many seconds")
    parser.add_argument("--failing-rank", type=int, default=-1, help="rank that raises an error in step 3")
    options = parser.parse_args()

    set_variables_of_torch()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loss = torch.zeros(())
    for step in range(options.steps):
        batch = load_batch(step, options.late_s if rank == options.late_rank else 0.0)
        if step == 3 and rank == options.failing_rank:
            raise ValueError(f"rank {rank} has a bad batch")
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
    dist.barrier()
    if rank == 0:
        print(f"loss {loss.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
