"""A user's program: all_reduce a number of times. Prints where the package that records it lies."""

from __future__ import annotations

import logging
import os
import sys

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")

times, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
ones = torch.ones(4)
for _ in range(times):
    dist.all_reduce(ones)
dist.destroy_process_group()
print(os.path.dirname(sys.modules["otel_torchdist"].__file__ or ""))
