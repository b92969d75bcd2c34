"""Ranks that give up once, as a program does that asks for a restart, and then stall for as long as a file is there."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

is_restarted = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
if is_restarted:
    time.sleep(2)  # it imports, it reads its data: no rank runs for longer than a moment
store, rank, size = next(dist.rendezvous("env://"))
# gloo would read addresses of the dead attempt, for torchrun keeps the store.
store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
dist.all_reduce(torch.ones(4))
if not is_restarted:
    sys.exit(3)
while rank and Path(sys.argv[1]).exists():
    time.sleep(0.05)
dist.all_reduce(torch.ones(4))
