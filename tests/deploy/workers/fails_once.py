"""Ranks that give up once, like a program that requests a restart, and then stall for as long as a file exists."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

is_restarted = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
if is_restarted:
    time.sleep(2)  # like imports and reading data: for longer than a moment no rank is running
store, rank, size = next(dist.rendezvous("env://"))
# gloo would read addresses of the dead attempt, as torchrun keeps the store.
store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
dist.all_reduce(torch.ones(4))
if not is_restarted:
    sys.exit(3)
while rank and Path(sys.argv[1]).exists():
    time.sleep(0.05)
dist.all_reduce(torch.ones(4))
