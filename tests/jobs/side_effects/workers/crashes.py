"""Two ranks whose tensors differ in size: gloo ends one of them by SIGABRT, without an exception."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import torch
import torch.distributed as dist

from tests.support.ranks.rank import join, rank, start_capture

if sys.argv[1] == "on":
    start_capture()
join()
dist.barrier()
with suppress(RuntimeError):  # the peer of the one that aborts has its connection closed
    dist.all_reduce(torch.ones(8 if rank() == 0 else 4))
os._exit(0)
