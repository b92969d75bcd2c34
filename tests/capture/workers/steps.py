"""One rank that trains in the way that its argument names, with three collectives between two steps."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

from otel_torchdist import mark_step
from tests.support.rank import join, start_capture

STEPS = 5


def parameter() -> torch.nn.Parameter:
    """A parameter with a gradient."""
    made = torch.nn.Parameter(torch.ones(2))
    made.grad = torch.ones(2)
    return made


def communicate(times: int = 3) -> None:
    """Collectives of the default group."""
    for _ in range(times):
        dist.all_reduce(torch.ones(1))


def one_optimizer() -> None:
    """The usual training."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    for _ in range(STEPS):
        communicate()
        optimizer.step()


def two_optimizers() -> None:
    """A GAN: two steps of the discriminator and one of the generator an iteration; the first seen counts."""
    generator, discriminator = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(2))
    for _ in range(STEPS):
        communicate()
        generator.step()
        discriminator.step()
        discriminator.step()


def zero() -> None:
    """An optimizer that calls another within its step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = ZeroRedundancyOptimizer([parameter()], torch.optim.SGD, lr=0.1)
    for _ in range(STEPS):
        communicate(2)
        optimizer.step()  # broadcasts by itself, once


def step_raises() -> None:
    """A step that raises is none, and does not hide those that follow."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)

    def closure() -> float:
        raise ZeroDivisionError

    try:
        optimizer.step(closure)
    except ZeroDivisionError:
        one_more = torch.optim.SGD([parameter()], lr=0.1)
        one_more.step()
    for _ in range(STEPS):
        communicate()
        optimizer.step()


def marked() -> None:
    """From the first `mark_step` on optimizers are silent."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    communicate()
    optimizer.step()
    for _ in range(STEPS - 1):
        communicate()
        optimizer.step()
        mark_step()


def windows() -> None:
    """Nobody says where a step ends."""
    communicate(64 * STEPS + 1)


def windows_until_optimizer() -> None:
    """An optimizer that comes late ends the counting of windows."""
    communicate(64 + 3)
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    for _ in range(STEPS - 1):
        optimizer.step()
        communicate(64)


mark_step()  # off, it does nothing
capture = start_capture()
join()
way: Callable[[], None] = globals()[sys.argv[1]]
way()
dist.destroy_process_group()
mark_step()
torch.optim.SGD([parameter()], lr=0.1).step()
