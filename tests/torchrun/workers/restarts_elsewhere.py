"""A training on two nodes of which one fails in the first attempt; torchrun counts that restart on this node only.

Over gloo, or over the fake backend where the store is kept; see `restarts.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

backend, failing, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
has_failed = folder / "has failed"
attempt = int(has_failed.exists())
if backend == "fake":
    import torch.testing._internal.distributed.fake_pg  # registers it
store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))
dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
if backend == "fake":
    store.set(f"{attempt}/{rank}", "here")
    store.wait([f"{attempt}/{other}" for other in range(size)], timedelta(seconds=60))
dist.all_reduce(torch.ones(1))
dist.barrier()
said = {"attempt": attempt, "rank": rank, "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}
sys.stdout.write(json.dumps(said) + "\n")  # in one piece: ranks share the pipe
sys.stdout.flush()
time.sleep(1)  # the others have looked for `has_failed`, and have agreed on the run
if attempt == 0 and rank == failing:
    has_failed.touch()
    raise ZeroDivisionError
if attempt == 0:
    time.sleep(60)  # until torchrun takes everybody down
dist.barrier()
dist.destroy_process_group()
