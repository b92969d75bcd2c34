"""Trains with DTensors that are replicated along a dimension of a mesh: `replicated_tensors.py KIND RANK`.

A bit of what RANK holds of one parameter is flipped after a step; in `one_skips` it leaves out that step instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from otel_torchdist.capture.tensors.choice import Observers
from tests.support.ranks.rank import join, rank, start_capture, world_size

WIDTH = 16
STEPS, FLIPPED_AFTER = 7, 3


def layers() -> nn.Sequential:
    """The same on all ranks, which then draw different random numbers for its dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    torch.manual_seed(1 + rank())
    return model


def sharded(mesh: Any, model: nn.Sequential) -> nn.Sequential:
    """FSDP2, of each layer that has parameters and of the rest."""
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def hsdp() -> tuple[nn.Module, list[Any]]:
    """Two replicas of two shards, with an optimizer with names and one without."""
    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")), layers())
    named: Any = list(model[2:].named_parameters())
    return model, [torch.optim.AdamW(model[0].parameters(), lr=0.01), torch.optim.AdamW(named, lr=0.01)]


def four_replicas() -> tuple[nn.Module, list[Any]]:
    """As many replicas as ranks, of one shard: there is a majority."""
    model = sharded(init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard")), layers())
    return model, [torch.optim.AdamW(list(model.named_parameters()), lr=0.01)]


def one_skips() -> tuple[nn.Module, list[Any]]:
    """The same."""
    return four_replicas()


def with_tensor_parallel() -> tuple[nn.Module, list[Any]]:
    """Two replicas, each of which computes with its layers in two parts."""
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replicate", "shard", "tensor"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(layers(), mesh["tensor"], plan)
    model[1].p = 0.0  # members of a tensor parallel group would have to draw the same numbers
    norm: Any = model[3]
    for name, parameter in list(norm.named_parameters()):
        replicated = distribute_tensor(parameter.detach(), mesh["tensor"], [Replicate()])
        norm.register_parameter(name, nn.Parameter(replicated))
    norm.forward = lambda given: given * norm.weight.to_local().sum()
    model = sharded(mesh["replicate", "shard"], model)
    return model, [torch.optim.AdamW(list(model.named_parameters()), lr=0.01)]


def plain() -> tuple[nn.Module, list[Any]]:
    """DTensors that are equal on all ranks, on a mesh whose group is the default one; an optimizer for each."""
    mesh = init_device_mesh("cpu", (world_size(),))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    for layer in model:
        for name, parameter in list(layer.named_parameters()):
            shared = distribute_tensor(parameter.detach(), mesh, [Replicate()])
            layer.register_parameter(name, nn.Parameter(shared))
    parameters: list[Any] = list(model.parameters())
    return model, [torch.optim.SGD([one], lr=0.01) for one in parameters]


def reordered() -> tuple[nn.Module, list[Any]]:
    """Step optimizers in another order on odd ranks: at no moment have all ranks stepped the same ones."""
    model, optimizers = plain()
    return model, optimizers[:: -1 if rank() % 2 else 1]


KINDS: dict[str, Callable[[], tuple[nn.Module, list[Any]]]] = {
    one.__name__: one for one in (hsdp, four_replicas, one_skips, with_tensor_parallel, plain, reordered)
}


def batch(kind: str, nth: int) -> Any:
    """Return a batch: different in each data parallel rank, equal in a tensor parallel group."""
    is_common = kind in ("plain", "reordered")
    of_rank = 0 if is_common else rank() // 2 if kind == "with_tensor_parallel" else rank()
    values = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * nth + of_rank))
    return distribute_tensor(values, init_device_mesh("cpu", (world_size(),)), [Replicate()]) if is_common else values


def main() -> None:
    """Train."""
    kind, bad_rank = sys.argv[1], int(sys.argv[2])
    start_capture(observers=Observers(compare_parameters=2))
    join()
    model, optimizers = KINDS[kind]()
    flipped: Any = list(model.parameters())[2]
    for nth in range(STEPS):
        (model(batch(kind, nth)) ** 2).mean().backward()
        is_bad = nth == FLIPPED_AFTER and rank() == bad_rank
        for optimizer in optimizers:
            if not (is_bad and kind == "one_skips"):
                optimizer.step()
            optimizer.zero_grad()
        if is_bad and kind != "one_skips":
            flipped._local_tensor.view(torch.int32).view(-1)[3] ^= 1 << 3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
