"""Three ranks where capture is switched on late: groups exist, collectives have run, some are in flight."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks.rank import join, rank, world_size
from tests.support.ranks.twin import begin, take


def in_old_groups() -> None:
    """Collectives of the default group and of another."""
    dist.all_reduce(torch.ones(2))  # issues
    if rank() != 1:
        dist.broadcast(torch.ones(2), src=2, group=pair)  # issues
        dist.barrier(group=pair)  # issues


def in_old_mesh() -> None:
    """A mesh's group."""
    dist.all_gather_into_tensor(torch.empty(2 * world_size()), torch.ones(2), group=mesh.get_group())  # issues


def in_new_group() -> None:
    """A group made now, of the same members as an old one."""
    group = dist.new_group([0, 2], group_desc="new")
    if rank() != 1:
        dist.all_reduce(torch.ones(2), group=group)  # issues


def with_old_model() -> None:
    """A model that was wrapped earlier."""
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()  # issues


def waiting_for_old_work() -> None:
    """Earlier Works are waited for: nothing of them is recorded."""
    for work in in_flight:
        assert work is not None
        work.wait()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    join()
    pair = dist.new_group([0, 2], group_desc="old")
    mesh = init_device_mesh("cpu", (3,))
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(torch.ones(2))
    in_flight = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
    begin()
    take(in_old_groups, in_old_mesh, in_new_group, with_old_model, waiting_for_old_work)
    dist.barrier()
    dist.destroy_process_group()
