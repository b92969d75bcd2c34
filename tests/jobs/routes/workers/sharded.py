"""Four ranks: sharded parameters, by FSDP's first and second generation."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.support.ranks.rank import join
from tests.support.ranks.twin import begin, take

CPU = torch.device("cpu")


def network() -> nn.Sequential:
    """Three layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))


def batch() -> torch.Tensor:
    """An input."""
    return torch.ones(2, 8)


def first_generation(strategy: ShardingStrategy) -> None:
    """Two steps of FSDP, each layer in a unit of its own."""
    policy = ModuleWrapPolicy({nn.Linear})
    model = FullyShardedDataParallel(network(), sharding_strategy=strategy, auto_wrap_policy=policy, device_id=CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(batch()).sum()  # issues
        loss.backward()  # issues
        optimizer.step()
        model.clip_grad_norm_(1.0)  # issues


def fsdp1_full_shard() -> None:
    """Parameters are gathered in forward and backward, gradients scattered."""
    first_generation(ShardingStrategy.FULL_SHARD)


def fsdp1_shard_grad_op() -> None:
    """Parameters stay gathered from forward to backward."""
    first_generation(ShardingStrategy.SHARD_GRAD_OP)


def fsdp1_no_shard() -> None:
    """Gradients are all-reduced."""
    first_generation(ShardingStrategy.NO_SHARD)


def fsdp2() -> None:
    """`fully_shard` on each layer and on the whole."""
    mesh = init_device_mesh("cpu", (4,))
    model = network()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(batch()).sum()  # issues
        loss.backward()  # issues
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # issues
        optimizer.step()
    model[0].unshard()  # issues
    model[0].reshard()


def fsdp2_in_two_dimensions() -> None:
    """Sharded in one dimension of a mesh, replicated in the other, with gradients in another dtype."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = network()
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    for _ in range(2):
        loss = model(batch()).sum()  # issues
        loss.backward()  # issues


def fsdp2_accumulating() -> None:
    """Two small batches per step: gradients are scattered with the second only, parameters stay gathered."""
    model = network()
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh("cpu", (4,)), reshard_after_forward=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    for is_last in (False, True):
        model.set_requires_gradient_sync(is_last)
        loss = model(batch()).sum()  # issues
        loss.backward()  # issues


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    begin()
    join()
    take(
        fsdp1_full_shard,
        fsdp1_shard_grad_op,
        fsdp1_no_shard,
        fsdp2,
        fsdp2_in_two_dimensions,
        fsdp2_accumulating,
    )
    dist.barrier()
    dist.destroy_process_group()
