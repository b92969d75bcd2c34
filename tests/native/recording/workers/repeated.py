"""Each kind of call several times from one line, as training makes them: what is planned natively, and what is not."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks.rank import join, rank, start_capture

TIMES = 6
capture = start_capture()
join()
own, size = rank(), dist.get_world_size()
pair = dist.new_group([0, 1])
ones = torch.ones(4)
rows = torch.ones(2 * size, 3)


def collectives() -> None:
    """Plain calls and asynchronous ones, with two reduce ops at one line."""
    for nth in range(TIMES):
        dist.all_reduce(ones, op=(dist.ReduceOp.SUM, dist.ReduceOp.MAX)[nth % 2])
        work = dist.all_reduce(ones, async_op=True)
        assert work is not None
        work.wait()
        dist.broadcast(ones, nth % size)
        dist.all_gather_into_tensor(torch.ones(4 * size), ones)
        dist.all_gather([torch.ones(4) for _ in range(size)], ones)
        dist.reduce_scatter_tensor(torch.ones(2, 3), rows)
        dist.reduce(ones, 0)
        dist.barrier()


def exchanges() -> None:
    """Even ones and uneven ones."""
    for nth in range(TIMES):
        dist.all_to_all_single(torch.ones(2 * size, 3), rows)
        if nth % 2:
            splits = [1, 3]
            received = [splits[own]] * 2
            dist.all_to_all_single(torch.ones(sum(received), 3), torch.ones(4, 3), received, splits)


def messages() -> None:
    """Point to point, and coalesced."""
    for _ in range(TIMES):
        if own == 0:
            dist.send(ones, 1, tag=3)
        else:
            dist.recv(ones, 0, tag=3)
        operations = [dist.P2POp(dist.isend, ones, 1 - own), dist.P2POp(dist.irecv, torch.ones(4), 1 - own)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def functionals() -> None:
    """Waited for by their memory."""
    for _ in range(TIMES):
        functional.wait_tensor(functional.all_reduce(ones, "sum", pair))


def from_cpp() -> None:
    """DDP's reducer."""
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(TIMES):
        model(torch.ones(2, 4)).sum().backward()


def in_thread() -> None:
    """Another thread, another group."""
    for _ in range(TIMES):
        dist.all_reduce(ones, group=pair)


def labels() -> None:
    """Two labels at one line."""
    for nth in range(TIMES):
        with dist.record_comm(f"label-{nth % 2}"):
            dist.all_reduce(ones)


def refused() -> None:
    """The backend raises in the call."""
    for _ in range(TIMES):
        try:
            dist.all_reduce(torch.ones(4, dtype=torch.complex32))
        except (RuntimeError, ValueError):
            continue


collectives()
exchanges()
messages()
functionals()
from_cpp()
thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
if hasattr(dist, "record_comm"):
    labels()
refused()
dist.barrier()
dist.destroy_process_group()
