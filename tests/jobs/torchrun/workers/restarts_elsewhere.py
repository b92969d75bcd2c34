"""A training on two nodes of which one fails in the first attempt; torchrun counts that restart on this node only."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from joining import join

backend, failing, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
has_failed = folder / "has failed"
attempt = int(has_failed.exists())
rank = join(backend, attempt)
dist.all_reduce(torch.ones(1))
dist.barrier()
said = {"attempt": attempt, "rank": rank, "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}
sys.stdout.write(json.dumps(said) + "\n")  # in one piece: ranks share the pipe
sys.stdout.flush()
time.sleep(1)  # the others have checked for `has_failed`, and have agreed on the run
if attempt == 0 and rank == failing:
    has_failed.touch()
    raise ZeroDivisionError
if attempt == 0:
    time.sleep(60)  # until torchrun ends all ranks
dist.barrier()
dist.destroy_process_group()
