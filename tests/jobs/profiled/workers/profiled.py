"""Small jobs of known parallelism under `torch.profiler`; arguments: a folder for traces, and names of jobs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule, tensorboard_trace_handler

from tests.support.ranks.rank import join, rank, world_size

WIDTH = 32


def model() -> nn.Module:
    """A layer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


def trained(module: nn.Module) -> Callable[[], None]:
    """A step of training."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def step() -> None:
        module(torch.ones(4, WIDTH)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(torch.ones(()))

    return step


def ddp() -> Callable[[], None]:
    """The model on each rank."""
    return trained(DistributedDataParallel(model()))


def fsdp() -> Callable[[], None]:
    """Its parameters spread over all ranks."""
    return trained(fully_shard(model()))


def pipeline() -> Callable[[], None]:
    """Activations from rank to rank, and gradients back."""
    module, here, last = model(), rank(), world_size() - 1

    def step() -> None:
        for _ in range(2):
            x = torch.ones(4, WIDTH)
            if here:
                dist.recv(x, here - 1)
            y = module(x)
            if here < last:
                dist.send(y.detach(), here + 1)
                dist.recv(x, here + 1)
            if here:
                dist.send(x, here - 1)

    return step


def tensors() -> Callable[[], None]:
    """A layer divided by tensors within pairs, parameters spread over the pairs."""
    mesh = init_device_mesh("cpu", (world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return trained(fully_shard(parallelize_module(model(), mesh["tp"], plan), mesh=mesh["dp"]))


def record(step: Callable[[], None], folder: Path) -> None:
    """Profile three steps, which have the numbers 1 to 3, and write both kinds of trace."""
    (folder / "execution").mkdir(parents=True, exist_ok=True)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=3, repeat=1),
        record_shapes=True,
        execution_trace_observer=ExecutionTraceObserver().register_callback(
            str(folder / "execution" / f"et_rank_{rank()}.json")
        ),
        on_trace_ready=tensorboard_trace_handler(str(folder / "kineto")),
    ) as profiler:
        for _ in range(4):
            step()
            profiler.step()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in sys.argv[2:]:
        join(suffix=name)
        record(globals()[name](), Path(sys.argv[1]) / name)
        dist.barrier()
        dist.destroy_process_group()
