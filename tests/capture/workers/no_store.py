"""One rank of a fake job, whose store cannot be cloned."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from tests.support.ranks.rank import rank, start_capture


class PythonStore(dist.Store):
    """A store in Python, as simulators use it: c10d cannot clone it."""

    def set(self, key: str, value: str) -> None:
        """Discard the value."""

    def add(self, key: str, amount: int) -> int:
        """Count nothing."""
        return amount


capture = start_capture()
dist.init_process_group("fake", store=PythonStore(), rank=rank(), world_size=8)
dist.all_reduce(torch.ones(1))
dist.all_reduce(torch.ones(1), async_op=True)
with contextlib.suppress(NotImplementedError):  # older versions of torch refuse it
    dist.all_reduce(torch.ones(1, device="meta"))
# A group that a library creates and only registers starts a tape too, with the rank that it has there.
ready_made = dist.ProcessGroup(dist.HashStore(), 2, 3)
dist.distributed_c10d._update_default_pg(ready_made)
dist.distributed_c10d._update_default_pg(pg=ready_made)
