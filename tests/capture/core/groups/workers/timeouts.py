"""Ranks whose groups have timeouts; rank 1 comes too late to what `raises` names.

Arguments: what to do.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.ranks.rank import STORE, join, rank, start_capture
from tests.support.waiting import until

GIVEN = timedelta(seconds=2)


def changed() -> None:
    """Use groups before and after their timeouts change, and operations with timeouts of their own."""
    tensor = torch.ones(4)
    pair = dist.new_group(timeout=timedelta(seconds=70), backend="gloo")
    dist.all_reduce(tensor)
    dist.barrier()
    dist.all_reduce(tensor, group=pair)
    for seconds in (50, 60, 50):
        set_timeout(seconds)
        dist.all_reduce(tensor)
    options = dist.BarrierOptions()
    options.timeout = timedelta(seconds=33)
    dist.group.WORLD.barrier(opts=options).wait()  # type: ignore[union-attr]  # it is a group
    dist.monitored_barrier(timeout=timedelta(seconds=33))
    dist.all_reduce(tensor, group=pair)


def often() -> None:
    """Change the timeout more often than that is recorded."""
    for seconds in range(40, 80):
        set_timeout(seconds)
    dist.all_reduce(torch.ones(4))


def set_timeout(seconds: float) -> None:
    """Change the timeout of the default group, as every version of torch can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


def raises() -> None:
    """Rank 0 waits until gloo gives up: in a collective, and in a receive that it has posted before."""
    dist.barrier()  # until here with the usual timeout, because ranks may come seconds apart
    pair = dist.new_group(timeout=GIVEN)  # gloo closes the connections of a group in which it has given up
    set_timeout(GIVEN.total_seconds())  # for collectives; a receive has what its group was created with
    with contextlib.suppress(RuntimeError):
        if rank() == 0:
            work = dist.irecv(torch.ones(4), 1, group=pair)
            assert work is not None
            time.sleep(0.5)
            work.wait()
    with contextlib.suppress(RuntimeError):
        if rank() == 0:
            dist.all_reduce(torch.ones(4))
    is_over = Path(f"{os.environ[STORE]}-over")
    if rank() == 0:
        is_over.touch()
    until(is_over.exists)  # its peer's connection stays open
    os._exit(0)


if __name__ == "__main__":
    start_capture()
    join(timedelta(seconds=45))
    {"changed": changed, "often": often, "raises": raises}[sys.argv[1]]()
