"""Four ranks: one model spread over several, by tensors and by stages."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from tests.support.ranks.rank import join, rank, world_size
from tests.support.ranks.twin import begin, take


class FeedForward(nn.Module):
    """Two matrices, the usual pair of tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize, project up and down."""
        return self.down(torch.relu(self.up(self.norm(x))))  # issues


def tensor_parallel() -> None:
    """Column-wise, then row-wise; in the second model with inputs sharded along the sequence."""
    mesh = init_device_mesh("cpu", (4,))
    model = parallelize_module(FeedForward(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})  # issues
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()  # issues
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    model = parallelize_module(FeedForward(), mesh, plan)  # issues
    model(torch.ones(2, 1, 8, requires_grad=True)).sum().backward()  # issues


def tensor_parallel_and_sharded() -> None:
    """Tensor parallelism in one dimension of a mesh, FSDP in the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(FeedForward(), mesh["tp"], plan)  # issues
    fully_shard(model, mesh=mesh["dp"])
    loss = model(torch.ones(4, 8)).sum()  # issues
    loss.backward()  # issues


def redistribution() -> None:
    """DTensors from one placement to another: each kind of collective."""
    mesh = init_device_mesh("cpu", (4,))
    sharded = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])  # issues
    distribute_tensor(torch.ones(8, 8), mesh, [Replicate()])  # issues
    sharded.redistribute(mesh, [Replicate()]).to_local().sum()  # issues
    sharded.redistribute(mesh, [Shard(1)]).to_local().sum()  # issues
    partial = DTensor.from_local(torch.ones(8, 8), mesh, [Partial()])
    partial.redistribute(mesh, [Replicate()]).to_local().sum()  # issues
    partial.redistribute(mesh, [Shard(0)]).to_local().sum()  # issues
    sharded.full_tensor().sum()  # issues
    uneven = distribute_tensor(torch.ones(7, 4), mesh, [Shard(0)])  # issues
    uneven.full_tensor().sum()  # issues


def in_two_dimensions() -> None:
    """DTensors on a mesh of two dimensions."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
    tensor = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0), Shard(1)])  # issues
    tensor.redistribute(mesh, [Replicate(), Shard(1)]).to_local().sum()  # issues
    (tensor @ tensor).redistribute(mesh, [Replicate(), Replicate()]).to_local().sum()  # issues


def stage(index: int, stages: int) -> PipelineStage:
    """One layer of the pipeline."""
    return PipelineStage(nn.Linear(8, 8), index, stages, torch.device("cpu"))


def run(schedule: ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B) -> None:
    """Two steps of a schedule; the last stage computes the loss."""
    inputs, target = torch.ones(8, 8), torch.zeros(8, 8)
    for _ in range(2):
        given = (inputs,) if rank() == 0 else ()
        losses: list[torch.Tensor] = []
        is_last = rank() == world_size() - 1
        schedule.step(*given, target=target if is_last else None, losses=losses if is_last else None)  # issues


def gpipe() -> None:
    """All forwards, then all backwards."""
    run(ScheduleGPipe(stage(rank(), 4), n_microbatches=4, loss_fn=nn.functional.mse_loss))


def one_forward_one_backward() -> None:
    """A backward after each forward, once the pipeline is full."""
    run(Schedule1F1B(stage(rank(), 4), n_microbatches=8, loss_fn=nn.functional.mse_loss))


def interleaved() -> None:
    """Two stages on each rank."""
    stages = [stage(rank() + 4 * turn, 8) for turn in range(2)]
    run(ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=nn.functional.mse_loss))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    begin()
    join()
    take(
        tensor_parallel,
        tensor_parallel_and_sharded,
        redistribution,
        in_two_dimensions,
        gpipe,
        one_forward_one_backward,
        interleaved,
    )
    dist.barrier()
    dist.destroy_process_group()
