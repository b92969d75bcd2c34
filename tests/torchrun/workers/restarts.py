"""Fails on its first attempt, on one rank after a collective; the second attempt ends well."""

from __future__ import annotations

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
for _ in range(attempt + 1):
    dist.all_reduce(torch.ones(1))
dist.barrier()
print(json.dumps({"attempt": attempt, "rank": dist.get_rank()}), flush=True)
if attempt == 0 and dist.get_rank() == 1:
    raise ZeroDivisionError
dist.barrier()
dist.destroy_process_group()
