"""Pipelines of two stages, in the usual schedules, each with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from tests.jobs.thirdparty.issued import counted, digest, exactly, report

STEPS = 3


def train(schedule_of: Callable[..., Any], stages_of_rank: int) -> list[str]:
    """Some steps of a schedule."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    layers = [nn.Linear(8, 8) for _ in range(stages_of_rank)]
    places = [rank + turn * size for turn in range(stages_of_rank)]
    stages = [
        PipelineStage(layer, place, stages_of_rank * size, torch.device("cpu"))
        for layer, place in zip(layers, places, strict=True)
    ]
    loss_fn = nn.functional.mse_loss
    schedule = schedule_of(stages if stages_of_rank > 1 else stages[0], n_microbatches=4, loss_fn=loss_fn)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses: list[torch.Tensor] = []
    for step in range(STEPS):
        inputs = torch.full((8, 8), float(step))
        given = (inputs,) if rank == 0 else ()
        is_last = rank == size - 1
        schedule.step(*given, target=inputs + 1 if is_last else None, losses=losses if is_last else None)
        optimizer.step()
        optimizer.zero_grad()
    return [*map(exactly, losses), digest(parameters)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with counted() as issued:
        said: list[str] = []
        for schedule, stages in (
            (ScheduleGPipe, 1),
            (Schedule1F1B, 1),
            (ScheduleInterleaved1F1B, 2),
            (ScheduleInterleavedZeroBubble, 2),
        ):
            said += train(schedule, stages)
        dist.barrier()
    # Of several optimizers the first one counts; the others count when it is gone.
    report(issued, losses=said, steps=4 * STEPS)
    dist.destroy_process_group()
