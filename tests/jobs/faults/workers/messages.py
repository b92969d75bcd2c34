"""The training script of `faulty.py`, with faults in what two ranks send each other, and in what a rank awaits."""

from __future__ import annotations

import asyncio

import torch
import torch.distributed as dist

from tests.jobs.faults.workers import faulty
from tests.jobs.faults.workers.faulty import main
from tests.jobs.faults.workers.setting import gradient, is_faulty, last, rank


def receive(source: int) -> None:
    """Receive an activation."""
    dist.recv(torch.zeros(4), source)  # receives


def peer() -> None:
    """The last rank receives from rank 0, until it takes its neighbor for that, which sends nothing."""
    for step in range(5):
        if rank == 0:
            dist.send(gradient, last)
        elif rank == last:
            receive(last - 1 if is_faulty and step == 4 else 0)
    dist.all_reduce(gradient)


def message() -> None:
    """The last rank has allocated less than it is sent, for which gloo ends it."""
    if rank == last - 1:
        dist.send(torch.ones(8), last)
    elif rank == last:
        dist.recv(torch.zeros(4 if is_faulty else 8), last - 1)
    dist.all_reduce(gradient)


async def step(is_answered: bool) -> None:
    """A step in an environment, which may not answer."""
    if not is_answered:
        await asyncio.get_running_loop().create_future()  # awaits


async def rollout() -> None:
    """Several environments at once."""
    await asyncio.gather(*(step(number < 3 or not is_faulty) for number in range(4)))


def coroutine() -> None:
    """The last rank awaits what does not come."""
    asyncio.run(rollout())
    dist.all_reduce(gradient)


if __name__ == "__main__":
    faulty.FAULTS = {one.__name__: one for one in (peer, message, coroutine)}
    main()
