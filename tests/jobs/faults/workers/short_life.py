"""Rank 1 is killed as soon as all have joined, when no rank but 0 knows the id of the run; rank 0 has joined last."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

folder, rank, size = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
time.sleep(0.3 if rank == 0 else 0.0)
dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=size)
(folder / f"joined-{rank}").touch()  # the others may not be through yet
if rank == 1:
    while len(list(folder.glob("joined-*"))) < size:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
