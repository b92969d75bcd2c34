"""A training that fails on its first attempt, on one rank after a collective; the second attempt ends cleanly."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from joining import join

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank = join(sys.argv[1], attempt)
for _ in range(attempt + 1):
    dist.all_reduce(torch.ones(1))
dist.barrier()
sys.stdout.write(json.dumps({"attempt": attempt, "rank": rank}) + "\n")  # in one piece: ranks share the pipe
sys.stdout.flush()
time.sleep(2)  # both ranks learn their run's id meanwhile, on a thread of ours, from a store that ends with rank 0
if attempt == 0 and rank == 1:
    raise ZeroDivisionError
if attempt == 0:
    signal.pause()  # until torchrun ends all ranks
dist.barrier()
dist.destroy_process_group()
