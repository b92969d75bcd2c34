"""A known number of calls of known sizes, with one rank that is late for each all-reduce and misses the last one.

Arguments: what that rank does (`misses one`), a gate (a file), and a directory in which each rank leaves its process id
once it has made all its calls but the last.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from otel_torchdist import mark_step

STEPS = 10
LATE_S = 0.1

gate, pids = Path(sys.argv[2]), Path(sys.argv[3])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
late = world_size // 2

dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=world_size)
evens = dist.new_group([0, 2])
gathered = torch.zeros(world_size * 256)
for step in range(STEPS):
    dist.broadcast(torch.ones(64), 0)
    dist.barrier()
    (pids.parent / f"calls {step} {rank}").touch()
    if rank == late:  # none of the others comes after it by chance
        while len(list(pids.parent.glob(f"calls {step} *"))) < world_size:
            time.sleep(0.001)
        time.sleep(LATE_S)
    dist.all_reduce(torch.ones(1024))
    dist.all_gather_into_tensor(gathered, torch.ones(256))
    if rank in (0, 2):
        dist.all_reduce(torch.ones(100_000), group=evens)
    if rank == 0:
        dist.send(torch.ones(16), 1)
    elif rank == 1:
        dist.recv(torch.zeros(16), 0)
    mark_step()
(pids / str(rank)).write_text(f"{os.getpid()}\n")
if rank == late:
    while gate.exists():
        time.sleep(0.02)
dist.all_reduce(torch.ones(1024))
dist.destroy_process_group()
