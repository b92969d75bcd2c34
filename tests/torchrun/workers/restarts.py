"""A training that fails on its first attempt, on one rank after a collective; the second attempt ends well.

With gloo, or, since gloo itself reads addresses of the dead attempt from a store that is kept, with the fake backend
over the same store; the ranks then meet in the store before they communicate.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
backend = sys.argv[1]
if backend == "fake":
    import torch.testing._internal.distributed.fake_pg  # registers it
store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))
dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
if backend == "fake":
    store.set(f"{attempt}/{rank}", "here")
    store.wait([f"{attempt}/{other}" for other in range(size)], timedelta(seconds=60))
for _ in range(attempt + 1):
    dist.all_reduce(torch.ones(1))
dist.barrier()
sys.stdout.write(json.dumps({"attempt": attempt, "rank": rank}) + "\n")  # in one piece: ranks share the pipe
sys.stdout.flush()
if attempt == 0 and rank == 1:
    raise ZeroDivisionError
if attempt == 0:
    signal.pause()  # until torchrun takes everybody down
dist.barrier()
dist.destroy_process_group()
