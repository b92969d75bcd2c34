"""Rank 3 raises in the first attempt, and is late for the second one's first collective, unaware of this package."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

has_failed, gate = Path(sys.argv[1]), Path(sys.argv[2])
is_first = not has_failed.exists()
dist.init_process_group("gloo")
gradient = torch.ones(4)
if is_first:
    dist.all_reduce(gradient)
    time.sleep(2)  # all have checked for the file
    if dist.get_rank() == 3:
        has_failed.touch()
        raise ZeroDivisionError
    time.sleep(600)
while dist.get_rank() == 3 and gate.exists():
    time.sleep(0.2)  # late
dist.all_reduce(gradient)
dist.destroy_process_group()
