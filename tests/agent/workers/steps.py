"""A training script that does not know of us: takes steps as long as a file exists."""

import contextlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

gate, pause_s = Path(sys.argv[1]), float(sys.argv[2])


def is_late() -> bool:
    """Whether rank 0 is to be late; the gate may be removed at any time."""
    with contextlib.suppress(FileNotFoundError):
        return gate.read_text() == "late"
    return False


dist.init_process_group("gloo")
# A single write, so that the lines of two ranks do not mix.
os.write(1, f"joined {time.monotonic()}\n".encode())
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
issued = 0
go_on = torch.ones(1)
while go_on.item():
    parameter.grad = torch.ones(1)
    dist.all_reduce(parameter.grad)
    optimizer.step()
    go_on.fill_(float(gate.exists()))
    while dist.get_rank() == 0 and is_late():
        time.sleep(0.05)
    dist.broadcast(go_on, 0)
    issued += 1
    time.sleep(pause_s)
dist.barrier()
os.write(1, f"issued {issued}\n".encode())
dist.destroy_process_group()
