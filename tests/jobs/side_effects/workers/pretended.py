"""One rank of a simulated job: nothing that it issues ever ends, and nothing of it is stuck; it watches itself."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.ranks.rank import own_tape, say, start_capture
from tests.support.tapes.tape_watch import Lookout

CPU = torch.device("cpu")


def look(case: str) -> None:
    """Wait past the threshold."""
    lookout.well_past_the_threshold()
    say(case=case, suspected=lookout.suspected, verdicts=len(lookout.verdicts), open_for=lookout.open_for())


def issue() -> None:
    """Issue everything that may be left without a wait."""
    kept.append(dist.all_reduce(torch.ones(2), async_op=True))
    kept.append(dist.broadcast(torch.ones(2), 1, async_op=True))
    kept.append(dist.reduce_scatter_tensor(torch.empty(2), torch.ones(8), async_op=True))
    kept.append(dist.isend(torch.ones(2), 1))
    kept.append(dist.irecv(torch.ones(2), 1))
    kept.append(functional.all_gather_tensor(torch.ones(2), 0, dist.group.WORLD))
    dist.barrier(async_op=True)


def coalesce_in_python(async_ops: bool) -> Any:
    """Operations of several kinds: they are issued one by one, with a single meaningful Work at the end."""
    with _coalescing_manager(device=CPU, async_ops=async_ops) as manager:
        dist.broadcast(torch.ones(3), 1)
        dist.all_gather([torch.empty(3) for _ in range(4)], torch.ones(3))
    return manager


warnings.simplefilter("ignore", FutureWarning)
kept: list[Any] = []
capture = start_capture()
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
lookout = Lookout([own_tape(capture)], float(sys.argv[1]))
issue()
look("left alone")
coalesce_in_python(async_ops=False)
kept.append(coalesce_in_python(async_ops=True))
look("coalesced and left alone")
with _coalescing_manager(device=CPU):
    dist.reduce(torch.ones(5), 1)
    look("in the middle of coalescing")
