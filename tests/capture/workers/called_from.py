"""Calls that are reached in several ways, through libraries and through torch's own code."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks.rank import join, start_capture

MANY = 40
METRICS = """
import torch, torch.distributed as dist
def _gather(x):
    dist.all_gather([x.clone(), x.clone()], x)
def gather_all(x):
    _gather(x)
class Retry:
    def call(self, function):
        function()
"""


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


def walk(turns: list[bool]) -> None:
    """A line that is reached in ever new ways."""
    if not turns:
        dist.reduce(torch.ones(2), 0)
    elif turns.pop():
        walk(turns)
    else:
        walk([*turns])


def installed() -> Any:
    """Import a package from where packages are installed."""
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base, "site-packages", "metrics")
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(METRICS)
        sys.path.insert(0, str(folder.parent))
        return importlib.import_module("metrics")


def library(gather: Callable[[torch.Tensor], None], wrapped: Callable[[Callable[[], None]], None]) -> None:
    """Called by a package, and through one by a line further in, and by the package alone in a thread."""
    gather(torch.ones(2))
    wrapped(lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2)))
    thread = threading.Thread(target=gather, args=(torch.ones(2),))
    thread.start()
    thread.join()


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
    for number in range(MANY):
        walk([bool(number >> place & 1) for place in range(6)])
    metrics = installed()
    library(metrics.gather_all, metrics.Retry().call)
    ddp()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
