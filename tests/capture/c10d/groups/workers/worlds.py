"""Two ranks that make worlds by hand, in which they have each other's numbers.

Arguments: what to do.
"""

from __future__ import annotations

import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo
from torch.distributed import distributed_c10d as c10d

from tests.support.ranks.rank import STORE, TIMEOUT, join, rank, start_capture

TENSOR = torch.ones(4)


def by_hand(path: str) -> ProcessGroup:
    """Make a world as trainers do that send weights to an engine: with a store of its own, and ranks anew."""
    store = dist.FileStore(f"{os.environ[STORE]}-{path}", 2)
    group, _ = c10d._new_process_group_helper(
        2, 1 - rank(), [], c10d.Backend("gloo"), PrefixStore("transfer", store), group_name="transfer", timeout=TIMEOUT
    )
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    return group


def stateless(path: str) -> ProcessGroup:
    """Make a world from the objects themselves, as engines do that have no default group."""
    store = dist.FileStore(f"{os.environ[STORE]}-{path}", 2)
    group = ProcessGroup(store, 1 - rank(), 2)
    backend = ProcessGroupGloo(store, 1 - rank(), 2, timeout=TIMEOUT)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
    return group


def beside() -> None:
    """Use two such worlds and the default one by turns."""
    join()
    transfer, objects = by_hand("transfer"), stateless("objects")
    for _ in range(3):
        dist.all_reduce(TENSOR)
        dist.broadcast(TENSOR, src=0, group=transfer)
        objects.broadcast([TENSOR], dist.BroadcastOptions()).wait()
    dist.destroy_process_group()


def again() -> None:
    """Make such a world for each update, and end it; the default group goes on, and is made anew in the end."""
    join()
    for update in range(5):
        transfer = by_hand(f"update-{update}")  # a file that is used again may hold old addresses
        dist.broadcast(TENSOR, src=0, group=transfer)
        dist.destroy_process_group(transfer)
        dist.all_reduce(TENSOR)
    dist.destroy_process_group()
    join(suffix="-anew")
    dist.all_reduce(TENSOR)
    dist.destroy_process_group()


def alone() -> None:
    """Be in no other world."""
    for made in (by_hand("transfer"), stateless("objects")):
        made.broadcast([TENSOR], dist.BroadcastOptions()).wait()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    start_capture()
    globals()[sys.argv[1]]()
