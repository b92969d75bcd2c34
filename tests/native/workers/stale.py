"""Calls of new shapes between known ones, whose Works and memory take the places of earlier ones."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.support.rank import join, start_capture

TIMES = 40
capture = start_capture()
join()
pool = torch.ones(4096)


def known() -> None:
    """Recorded natively, and never waited for: the Work is dropped, so its place is free for the next."""
    dist.all_reduce(pool[:8], async_op=True)
    dist.barrier()


def new(size: int) -> None:
    """Recorded in Python, because of its shape."""
    dist.all_reduce(pool[:size], async_op=True).wait()  # pyright: ignore[reportOptionalMemberAccess]


for nth in range(TIMES):
    known()
    new(100 + nth)
    dist.barrier()
dist.destroy_process_group()
