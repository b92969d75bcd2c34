"""Rank 1 is killed as soon as it has joined, when no rank but 0 knows the id of the run; rank 0 has joined last."""

from __future__ import annotations

import os
import signal
import time

import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
time.sleep(0.3 if rank == 0 else 0.0)
dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=size)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
