"""Three ranks: the functions of `torch.distributed`, called directly.

In all workers a line that issues operations ends in the comment `issues`.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import P2POp
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.support.ranks.rank import join, rank, world_size
from tests.support.ranks.twin import begin, refused, take


def parts(size: int = 2) -> list[torch.Tensor]:
    """One tensor for each rank."""
    return [torch.ones(size) for _ in range(world_size())]


def synchronous() -> None:
    """Every collective, synchronous."""
    n, here = world_size(), rank()
    two, flat = torch.ones(2), torch.ones(2 * n)
    dist.all_reduce(two)  # issues
    dist.all_gather(parts(), two)  # issues
    dist.all_gather_into_tensor(flat, two)  # issues
    dist.reduce_scatter(two, parts())  # issues
    dist.reduce_scatter_tensor(two, flat)  # issues
    dist.all_to_all_single(torch.empty(2 * n), flat)  # issues
    dist.all_to_all_single(torch.empty(2 * n), flat, [2] * n, [2] * n)  # issues
    dist.broadcast(two, src=1)  # issues
    dist.reduce(two, dst=2)  # issues
    dist.gather(two, parts() if here == 0 else None, dst=0)  # issues
    dist.scatter(two, parts() if here == 1 else None, src=1)  # issues
    dist.all_reduce_coalesced([two, two])  # issues
    dist.all_gather_coalesced([[torch.empty(2), torch.empty(2)] for _ in range(n)], [two, two])  # issues
    for _ in range(50):
        dist.all_reduce(two)  # issues


def asynchronous() -> None:
    """Every collective, asynchronous, waited for later and in another order."""
    n, here = world_size(), rank()
    two, flat = torch.ones(2), torch.ones(2 * n)
    works = [
        dist.all_reduce(torch.ones(3), async_op=True),  # issues
        dist.all_gather(parts(), two, async_op=True),  # issues
        dist.all_gather_into_tensor(torch.empty(2 * n), two, async_op=True),  # issues
        dist.reduce_scatter(torch.empty(2), parts(), async_op=True),  # issues
        dist.reduce_scatter_tensor(torch.empty(2), flat, async_op=True),  # issues
        dist.all_to_all_single(torch.empty(2 * n), flat, async_op=True),  # issues
        dist.broadcast(torch.ones(2), src=1, async_op=True),  # issues
        dist.reduce(torch.ones(2), dst=2, async_op=True),  # issues
        dist.gather(two, parts() if here == 0 else None, dst=0, async_op=True),  # issues
        dist.scatter(torch.empty(2), parts() if here == 1 else None, src=1, async_op=True),  # issues
        dist.barrier(async_op=True),  # issues
    ]
    for work in reversed(works):
        assert work is not None
        work.wait()


def to_all_lists() -> None:
    """`all_to_all` of lists, which gloo supports since after torch 2.8."""
    with refused(RuntimeError, "Backend gloo does not support alltoall", always=False):
        for is_async in (False, True):
            work = dist.all_to_all(parts(), parts(), async_op=is_async)  # issues
            if work is not None:
                work.wait()


def object_collectives() -> None:
    """Object collectives: each is several operations, for lengths, then pickles."""
    n, here = world_size(), rank()
    things: list[Any] = [{"rank": here}]
    dist.broadcast_object_list(things, src=0)  # issues
    gathered: list[Any] = [None] * n
    dist.all_gather_object(gathered, here)  # issues
    dist.gather_object(here, gathered if here == 2 else None, dst=2)  # issues
    dist.scatter_object_list([None], gathered if here == 0 else None, src=0)  # issues
    if here == 1:
        dist.send_object_list(things, 2)  # issues
    if here == 2:
        dist.recv_object_list(things, 1)  # issues


def point_to_point() -> None:
    """Sends and receives: blocking, never waited for, with crossing tags, and a batch."""
    here, following, previous = rank(), (rank() + 1) % world_size(), (rank() - 1) % world_size()
    if here == 0:
        dist.send(torch.ones(4), 1)  # issues
    if here == 1:
        dist.recv(torch.empty(4), 0)  # issues
    works = [
        dist.isend(torch.ones(4), following, tag=1),  # issues
        dist.isend(torch.ones(8), following, tag=2),  # issues
        dist.irecv(torch.empty(8), previous, tag=2),  # issues
        dist.irecv(torch.empty(4), previous, tag=1),  # issues
    ]
    for work in works:
        assert work is not None
        work.wait()
    receive, send = P2POp(dist.irecv, torch.empty(4), previous), P2POp(dist.isend, torch.ones(4), following)
    for work in dist.batch_isend_irecv([receive, send, receive, send]):  # issues
        work.wait()


def from_any_source() -> None:
    """Rank 0 receives from any rank, twice."""
    if rank() != 0:
        dist.send(torch.ones(1), 0)  # issues
        return
    assert {dist.recv(torch.empty(1)), dist.recv(torch.empty(1))} == {1, 2}  # issues


def coalescing_manager() -> None:
    """The collectives inside are coalesced into one operation each time."""
    n = world_size()
    with _coalescing_manager():  # issues
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(3))
    with _coalescing_manager(async_ops=True) as manager:  # issues
        dist.all_gather_into_tensor(torch.empty(2 * n), torch.ones(2))
        dist.all_gather_into_tensor(torch.empty(3 * n), torch.ones(3))
    manager.wait()
    with _coalescing_manager():  # issues
        dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * n))
        dist.reduce_scatter_tensor(torch.empty(3), torch.ones(3 * n))


def barriers() -> None:
    """Both kinds of barriers; a monitored one exchanges messages with rank 0 through gloo's own sends and receives."""
    dist.barrier()  # issues
    dist.monitored_barrier()  # issues
    dist.monitored_barrier(wait_all_ranks=True)  # issues


def sparse() -> None:
    """Sparse tensors, of which gloo reduces each rank's values."""
    index = torch.tensor([[rank(), 2]])
    mine = torch.sparse_coo_tensor(index, torch.ones(2), (4,)).coalesce()
    dist.all_reduce(mine)  # issues
    work = dist.all_reduce(torch.eye(3).to_sparse(), async_op=True)  # issues
    assert work is not None
    work.wait()


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    begin()
    join()
    take(
        synchronous,
        asynchronous,
        to_all_lists,
        object_collectives,
        point_to_point,
        from_any_source,
        coalescing_manager,
        barriers,
        sparse,
    )
    dist.destroy_process_group()
