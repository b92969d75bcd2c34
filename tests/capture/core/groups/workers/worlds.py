"""Two ranks that create standalone process groups, in which their rank numbers are swapped.

Arguments: what to do.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo
from torch.distributed import distributed_c10d as c10d

from tests.support.ranks.rank import STORE, TIMEOUT, join, rank, start_capture

TENSOR = torch.ones(4)


def standalone(path: str) -> ProcessGroup:
    """Create a standalone process group, as a trainer does to send weights to an engine."""
    store = dist.FileStore(f"{os.environ[STORE]}-{path}", 2)
    group, _ = c10d._new_process_group_helper(
        2, 1 - rank(), [], c10d.Backend("gloo"), PrefixStore("transfer", store), group_name="transfer", timeout=TIMEOUT
    )
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    return group


def stateless(path: str) -> ProcessGroup:
    """Create a standalone process group from torch's objects, as engines without a default group do."""
    store = dist.FileStore(f"{os.environ[STORE]}-{path}", 2)
    group = ProcessGroup(store, 1 - rank(), 2)
    backend = ProcessGroupGloo(store, 1 - rank(), 2, timeout=TIMEOUT)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
    return group


def beside() -> None:
    """Use two standalone process groups and the default group by turns."""
    join()
    transfer, objects = standalone("transfer"), stateless("objects")
    for _ in range(3):
        dist.all_reduce(TENSOR)
        dist.broadcast(TENSOR, src=0, group=transfer)
        objects.broadcast([TENSOR], dist.BroadcastOptions()).wait()
    dist.destroy_process_group()


def again() -> None:
    """Create and destroy a standalone process group for each update; recreate the default group at the end."""
    join()
    for update in range(5):
        transfer = standalone(f"update-{update}")  # a file that is used again may hold old addresses
        dist.broadcast(TENSOR, src=0, group=transfer)
        dist.destroy_process_group(transfer)
        dist.all_reduce(TENSOR)
    dist.destroy_process_group()
    join(suffix="-anew")
    dist.all_reduce(TENSOR)
    dist.destroy_process_group()


def alone() -> None:
    """Use standalone process groups only."""
    for made in (standalone("transfer"), stateless("objects")):
        made.broadcast([TENSOR], dist.BroadcastOptions()).wait()


def backend(path: str) -> ProcessGroupGloo:
    """Use a standalone backend."""
    store = dist.FileStore(f"{os.environ[STORE]}-{path}", 2)
    return ProcessGroupGloo(PrefixStore("weights", store), 1 - rank(), 2, TIMEOUT)


def lone() -> None:
    """Call two backends directly: a standalone one, and the default group's, which torch has created."""
    join()
    link, own = backend("weights"), dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    for nth in range(3):
        received = torch.full((4,), float(link.rank() + nth))
        options = dist.BroadcastOptions()
        options.rootRank = 1
        work = link.broadcast([received], options)
        work.wait()
        assert received.tolist() == [1.0 + nth] * 4
        gathered = [torch.zeros(4), torch.zeros(4)]
        link.allgather([gathered], [torch.full((4,), float(link.rank()))]).wait()
        assert [one.tolist() for one in gathered] == [[0.0] * 4, [1.0] * 4]
        link.barrier().wait()
        own.allreduce([TENSOR]).wait()  # not recorded
        dist.all_reduce(TENSOR)
    sends = link.rank() == 0
    (link.send([TENSOR], 1, 7) if sends else link.recv([TENSOR], 0, 7)).wait()
    reference = weakref.ref(link)
    del link, work
    assert reference() is None
    dist.destroy_process_group()


def every_method() -> None:
    """Call every method of a backend, with options and in its short form, and one call that it refuses."""
    link, nothing, two = backend("weights"), torch.zeros(4), [torch.zeros(4), torch.zeros(4)]
    maximum, last = dist.AllreduceOptions(), dist.BroadcastOptions()
    maximum.reduceOp, last.rootRank = dist.ReduceOp.MAX, 1
    one, is_first = torch.full((4,), link.rank() + 1.0), link.rank() == 0
    link.allreduce([one.clone()], maximum).wait()
    link.allreduce(one.clone(), dist.ReduceOp.MAX).wait()
    link.allreduce(one.clone(), op=dist.ReduceOp.MAX).wait()
    link.broadcast([nothing.clone()], last).wait()
    link.broadcast(nothing.clone(), 1).wait()
    link.allgather([two], [one]).wait()
    link.allgather(two, one).wait()
    link._allgather_base(torch.zeros(8), one).wait()
    link.reduce(one.clone(), 1, dist.ReduceOp.MAX).wait()
    at_root = [two] if is_first else []
    link.gather(at_root, [one], dist.GatherOptions()).wait()  # torch 2.8 refuses the short forms of these two
    link.scatter([nothing.clone()], at_root, dist.ScatterOptions()).wait()
    link.reduce_scatter(nothing.clone(), two, dist.ReduceOp.SUM).wait()
    link.alltoall_base(nothing.clone(), one, [2, 2], [2, 2]).wait()
    link.barrier().wait()
    (link.send([one], 1, 7) if is_first else link.recv([nothing.clone()], 0, 7)).wait()
    for wrong in (lambda: link.allreduce(7), lambda: link.send([one]), lambda: link.broadcast([one], last, 3, 4)):
        try:
            wrong()
        except TypeError:
            continue
        raise AssertionError("accepted")


def only_backend() -> None:
    """Use only a standalone backend."""
    backend("weights").allreduce([TENSOR]).wait()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    start_capture()
    globals()[sys.argv[1]]()
