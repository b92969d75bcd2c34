"""Fourteen steps of two collectives. Before the second one rank 2 takes 80 ms longer than the others.

Arguments: what the job does (nothing else), a gate that is not used, and a directory for process ids.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from otel_torchdist import mark_step

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=world_size)
(Path(sys.argv[3]) / str(rank)).write_text(f"{os.getpid()}\n")
for _ in range(14):
    time.sleep(0.02)
    dist.all_reduce(torch.ones(4))
    time.sleep(0.33 if rank == 2 else 0.25)  # long: steps that take twice the median, by a stall, are left out
    dist.all_reduce(torch.ones(4))  # the late call
    mark_step()
dist.destroy_process_group()
