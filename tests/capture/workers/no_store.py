"""One rank of a pretended job: its store cannot be cloned."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.rank import rank, start_capture

capture = start_capture()
dist.init_process_group("fake", store=FakeStore(), rank=rank(), world_size=8)
dist.all_reduce(torch.ones(1))
dist.all_reduce(torch.ones(1), async_op=True)
with contextlib.suppress(NotImplementedError):  # older versions of torch refuse it
    dist.all_reduce(torch.ones(1, device="meta"))
# What a library makes and only registers starts a tape too, with the rank that it has there.
ready_made = dist.ProcessGroup(dist.HashStore(), 2, 3)
dist.distributed_c10d._update_default_pg(ready_made)
dist.distributed_c10d._update_default_pg(pg=ready_made)
