"""Two ranks: functional collectives, run as they are and compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks.rank import join
from tests.support.ranks.twin import begin, take


def used(result: torch.Tensor) -> float:
    """Use the result of a functional collective, which waits for it."""
    return float(result.sum())


def group() -> dist.ProcessGroup:
    """The default group."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def eager() -> None:
    """Each functional collective."""
    four = torch.ones(4)
    used(functional.all_reduce(four, "sum", group()))  # issues
    used(functional.all_gather_tensor(four, 0, group()))  # issues
    used(functional.reduce_scatter_tensor(four, "sum", 0, group()))  # issues
    used(functional.all_to_all_single(four, [2, 2], [2, 2], group()))  # issues
    used(functional.broadcast(four, 0, group()))  # issues
    for result in functional.all_reduce_coalesced([four, four], "sum", group()):  # issues
        used(result)
    for result in functional.all_gather_into_tensor_coalesced([four, four], group()):  # issues
        used(result)
    for result in functional.reduce_scatter_tensor_coalesced([four, four], "sum", [0, 0], group()):  # issues
        used(result)
    used(functional.all_reduce(four, "max", init_device_mesh("cpu", (2,))))  # issues


def with_gradients() -> None:
    """Functional collectives with a backward."""
    given = torch.ones(4, requires_grad=True)
    gathered = functional.all_gather_tensor_autograd(given, 0, group())  # issues
    gathered.square().sum().backward()  # issues
    scattered = functional.reduce_scatter_tensor_autograd(given, "sum", 0, group())  # issues
    scattered.square().sum().backward()  # issues
    exchanged = functional.all_to_all_single_autograd(given, [2, 2], [2, 2], group())  # issues
    exchanged.square().sum().backward()  # issues


def not_waited_for() -> None:
    """A result that is never used."""
    kept.append(functional.all_reduce(torch.ones(4), "sum", group()))  # issues
    dist.barrier()  # issues


def program(x: torch.Tensor) -> torch.Tensor:  # issues
    """Compiled code: functional collectives and `dist.all_reduce`, which Dynamo turns into one.

    Compiled code has no lines of this file except the first.
    """
    reduced = functional.all_reduce(x * 2, "sum", group())
    gathered = functional.all_gather_tensor(reduced, 0, group())
    scattered = functional.reduce_scatter_tensor(gathered, "sum", 0, group())
    dist.all_reduce(scattered)
    return scattered


def three_times(compiled: Callable[..., Any]) -> None:
    """Compile with the first call, run with the others."""
    for _ in range(3):
        compiled(torch.ones(4))


def aot_eager() -> None:
    """Traced, then run operation by operation."""
    three_times(torch.compile(program, backend="aot_eager", fullgraph=True))


def inductor() -> None:
    """Compiled to C++."""
    torch._dynamo.reset()
    three_times(torch.compile(program, fullgraph=True, options={"cpp_cache_precompile_headers": False}))


def compiled_ddp() -> None:
    """A compiled model in DDP, whose reducer runs as usual."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model = torch.compile(DistributedDataParallel(network), backend="aot_eager")  # issues
    for _ in range(2):
        loss = model(torch.ones(2, 8)).sum()  # issues
        loss.backward()  # issues


kept: list[torch.Tensor] = []

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    begin()
    join()
    take(eager, with_gradients, not_waited_for, aot_eager, inductor, compiled_ddp)
    dist.barrier()
    dist.destroy_process_group()
