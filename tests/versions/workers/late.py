"""Two ranks meet once; then rank 1 is late for the next collective until a file appears."""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

gate = Path(sys.argv[1])
dist.init_process_group("gloo", timeout=timedelta(minutes=5))
gradient = torch.ones(4)
dist.all_reduce(gradient)
while dist.get_rank() == 1 and not gate.exists():
    time.sleep(0.1)
dist.all_reduce(gradient)
dist.destroy_process_group()
