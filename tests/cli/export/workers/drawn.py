"""Calls that overlap, messages and optimizer steps, and then a hang: one rank does not come to the last all-reduce.

Arguments: what that rank does (unused), a gate (a file), and a directory in which each rank leaves its process id once
it has made all its calls but the last.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 5

gate, pids = Path(sys.argv[2]), Path(sys.argv[3])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
late = world_size // 2

dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=world_size)
alone = [dist.new_group([member]) for member in range(world_size)][rank]
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(4))], lr=0.1)
for step in range(STEPS):
    (pids.parent / f"calls {step} {rank}").touch()
    if rank == late:  # none of the others comes after it by chance
        while len(list(pids.parent.glob(f"calls {step} *"))) < world_size:
            time.sleep(0.001)
        time.sleep(0.05)
    works = [dist.all_reduce(torch.ones(1024), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    dist.barrier()
    dist.all_reduce(torch.ones(8), group=alone)
    if rank == 0:
        dist.send(torch.ones(16), 1)
    elif rank == 1:
        dist.recv(torch.zeros(16), 0)
    optimizer.step()
(pids / str(rank)).write_text(f"{os.getpid()}\n")
if rank == late:
    while gate.exists():
        time.sleep(0.02)
dist.all_reduce(torch.ones(1024))
dist.destroy_process_group()
