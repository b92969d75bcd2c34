"""Two ranks that compile models of libraries for parallel training, with capture or without; they report on Dynamo."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks.rank import join, rank, say, start_capture


def net() -> nn.Sequential:
    """Two layers, the same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def trained(model: Callable[..., Any]) -> list[float]:
    """Some steps without an optimizer; returns the losses."""
    losses = []
    for _ in range(3):
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()
        losses.append(loss.item())
    return losses


def ddp() -> list[float]:
    """Buckets in a compiled backward."""
    return trained(torch.compile(DistributedDataParallel(net()), backend="aot_eager"))


def fsdp2() -> list[float]:
    """Each layer is a unit."""
    model = net()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return trained(torch.compile(fully_shard(model), backend="aot_eager"))


def fsdp1() -> list[float]:
    """The older one."""
    model = FullyShardedDataParallel(net(), use_orig_params=True, device_id=torch.device("cpu"))
    return trained(torch.compile(model, backend="aot_eager"))


def sliced() -> list[float]:
    """A mesh that is sliced in a compiled function."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))

    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", mesh["tp"]) + 1

    return torch.compile(function, backend="aot_eager")(torch.ones(3)).tolist()


def pipeline() -> list[float]:
    """A stage that is compiled."""
    stage = PipelineStage(torch.compile(net(), backend="aot_eager"), rank(), 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    losses: list[Any] = []
    if rank():
        schedule.step(target=torch.zeros(4, 8), losses=losses)
    else:
        schedule.step(torch.ones(4, 8))
    return [loss.item() for loss in losses]


if sys.argv[1] == "on":
    start_capture()
join()
for part in (ddp, fsdp2, fsdp1, sliced, pipeline):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch._dynamo.reset()
        counters.clear()
        results = part()
    warned = sorted({str(warning.message).partition("\n")[0][:80] for warning in caught})
    graphs = {key: dict(counters[key]) for key in ("stats", "graph_break", "unimplemented", "aot_autograd")}
    say(part=part.__name__, results=results, graphs=graphs, warnings=warned)
dist.destroy_process_group()
