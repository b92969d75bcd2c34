"""One rank of a fake job on a backend that coalesces: the block's operations end with its Work."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.ranks.rank import start_capture

capture = start_capture()
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
cpu, x = torch.device("cpu"), torch.ones(4)
with _coalescing_manager(device=cpu, async_ops=True) as manager:
    dist.broadcast(x, 1)
    dist.all_gather([torch.empty(4) for _ in range(4)], x)
manager.wait()
group = dist.group.WORLD
group._start_coalescing(cpu)
dist.reduce(x, 2)
with contextlib.suppress(RuntimeError):
    group._end_coalescing(torch.device("meta"))
dist.all_reduce(x)
