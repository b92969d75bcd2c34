"""Four ranks: groups of every kind, made in every way."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store

from tests.support.ranks.rank import TIMEOUT, join, rank, world_size
from tests.support.ranks.twin import begin, outside_the_books, refused, take


def reduce_in(group: ProcessGroup) -> None:
    """The same line for groups that are made in different ways."""
    dist.all_reduce(torch.ones(2), group=group)  # issues


def new_group() -> None:
    """Groups made by all ranks: two with the same members, and one made by its members only."""
    for _ in range(2):
        group = dist.new_group([1, 3])
        if rank() in (1, 3):
            dist.all_reduce(torch.ones(2), group=group)  # issues
            dist.broadcast(torch.ones(2), src=3, group=group)  # issues
    # On all ranks: from torch 2.15 on such a group counts in the names of later groups that all ranks make.
    members = [0, 2] if rank() in (0, 2) else [1, 3]
    group = dist.new_group(members, use_local_synchronization=True)
    dist.all_reduce(torch.ones(2), group=group)  # issues
    if rank() == members[0]:
        dist.send(torch.ones(2), members[1], group=group)  # issues
    else:
        dist.recv(torch.ones(2), members[0], group=group)  # issues


def subgroups() -> None:
    """Halves of the world, split by size and by list."""
    group, _ = dist.new_subgroups(group_size=2)
    reduce_in(group)
    group, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    dist.all_gather_into_tensor(torch.empty(4), torch.ones(2), group=group)  # issues


def split() -> None:
    """Before torch 2.15 only groups of accelerators can be split."""
    with refused(RuntimeError, "No device associated with the default pg", always=False):
        half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
        reduce_in(half)


def mesh_of_two_dimensions() -> None:
    """A group for each dimension."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for name in ("dp", "tp", "tp"):
        dist.all_reduce(torch.ones(2), group=mesh.get_group(name))  # issues
    flat = mesh["dp", "tp"]._flatten("dp_tp")
    dist.all_reduce(torch.ones(2), group=flat.get_group())  # issues


class Delegating(ProcessGroup):
    """A process group in Python that delegates to another, as fault-tolerant ones do."""

    def __init__(self, inner: ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())
        self.inner = inner

    def getBackendName(self) -> str:
        """Its name."""
        return "delegating"

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        """Delegate, counted as the operation of the inner group."""
        return self.inner.allreduce(tensors, options)  # issues

    def barrier(self, options: Any = None) -> Any:
        """Delegate."""
        return self.inner.barrier(options)  # issues


class Counting(ProcessGroup):
    """A process group in Python with a backend of its own, which inspects what passes."""

    seen = 0

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        """Count, then do as every group does."""
        self.seen += 1
        return super().allreduce(tensors, options)  # issues


def give_backend(group: ProcessGroup, name: str) -> None:
    """Enable a group to communicate on the CPU, as libraries do that bypass `new_group`."""
    store = PrefixStore(f"{name} of {group.size()}", _get_default_store())
    group._register_backend(
        torch.device("cpu"),
        ProcessGroup.BackendType.GLOO,
        ProcessGroupGloo(store, group.rank(), group.size(), TIMEOUT),
    )
    group._set_default_backend(ProcessGroup.BackendType.GLOO)


def groups_in_python() -> None:
    """Subclasses of ProcessGroup: what they delegate is one operation, not two."""
    outer = Delegating(dist.new_group([0, 1, 2, 3], group_desc="inner"))
    outer.allreduce([torch.ones(2)], dist.AllreduceOptions()).wait()
    outer.barrier(dist.BarrierOptions()).wait()
    own = Counting(rank(), world_size())
    give_backend(own, "counting")
    outside_the_books(own, list(range(world_size())))
    own.allreduce([torch.ones(2)], dist.AllreduceOptions()).wait()
    assert own.seen == 1


def made_by_hand() -> None:
    """Groups that torch does not list: one of all ranks, one of half."""
    for members in (list(range(world_size())), [0, 2]):
        if rank() in members:
            store = PrefixStore(f"by hand {members}", _get_default_store())
            group = ProcessGroup(store, members.index(rank()), len(members))
            give_backend(group, "by hand")
            # All that can be known about its members is their number.
            outside_the_books(group, list(range(len(members))))
            group.allreduce([torch.ones(2)], dist.AllreduceOptions()).wait()  # issues


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    begin()
    join()
    take(new_group, subgroups, split, mesh_of_two_dimensions, groups_in_python, made_by_hand)
    dist.destroy_process_group()
