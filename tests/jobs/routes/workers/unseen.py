"""Two ranks: what must not be on the tape, and what cannot be."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import ProcessGroup, ProcessGroupGloo

from tests.support.ranks.rank import join, rank
from tests.support.ranks.twin import begin, refused, take


def world() -> ProcessGroup:
    """The default group."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def backend() -> ProcessGroupGloo:
    """The default group's backend."""
    found = world()._get_backend(torch.device("cpu"))
    assert isinstance(found, ProcessGroupGloo)
    return found


def meta_tensors() -> None:
    """Meta tensors have no data: only shapes are computed."""
    functional.all_reduce(torch.empty(4, device="meta"), "sum", world())
    with refused(RuntimeError, "allreduce_", always=False):  # torch 2.8
        dist.all_reduce(torch.empty(4, device="meta"))


def fake_tensors() -> None:
    """Fake tensors, which torch.compile and cost models trace with."""
    with FakeTensorMode():
        functional.all_reduce(torch.empty(4), "sum", world())
        with refused(RuntimeError, "allreduce_", always=False):  # torch 2.8
            dist.all_reduce(torch.empty(4))


def direct_backend_calls() -> None:
    """Passed to gloo directly, bypassing the dispatcher."""
    backend().allreduce([torch.ones(4)], dist.AllreduceOptions()).wait()
    if rank() == 0:
        backend().send([torch.ones(4)], 1, 0).wait()
    else:
        backend().recv([torch.ones(4)], 0, 0).wait()


if __name__ == "__main__":
    begin()
    join()
    take(meta_tensors, fake_tensors, direct_backend_calls)
    dist.barrier()
    dist.destroy_process_group()
