"""Calls that are reached in several ways, through libraries and through torch's own code."""

from __future__ import annotations

import contextlib
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks.rank import join, start_capture


def reduce(size: int) -> None:
    """One line for several callers."""
    dist.all_reduce(torch.ones(size))


def straight() -> None:
    """One caller."""
    dist.barrier()


class Layer(nn.Module):
    """A layer that communicates."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gather something."""
        dist.broadcast(x, 0)
        return x


def folded() -> None:
    """Called by torch, with the standard library in between."""
    with contextlib.ExitStack() as stack:
        stack.callback(functools.partial(Layer(), torch.ones(2)))


def deep(depth: int) -> None:
    """More frames than a path holds."""
    if depth:
        deep(depth - 1)
    else:
        dist.all_gather_into_tensor(torch.ones(2), torch.ones(1))


def ddp() -> None:
    """Called by C++, in a backward pass."""
    model = DistributedDataParallel(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()


def main() -> None:
    """Go through the parts."""
    join()
    start_capture()
    straight()
    reduce(2)
    for size in range(3, 6):  # of these, only the shapes differ
        reduce(size)
    folded()
    deep(100)
    ddp()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
