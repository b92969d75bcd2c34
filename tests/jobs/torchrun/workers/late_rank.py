"""A training script that does not know of us: one rank is late once, as long as a file exists."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 12
LATE_STEP = 5
gate = Path(sys.argv[1])

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def load_batch(step: int) -> torch.Tensor:
    """The late rank stays here while the gate exists."""
    while rank == 2 and step == LATE_STEP and gate.exists():
        time.sleep(0.05)
    return torch.ones(2, 4)


for step in range(STEPS):
    optimizer.zero_grad()
    model(load_batch(step)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(1))
dist.barrier()
dist.destroy_process_group()
