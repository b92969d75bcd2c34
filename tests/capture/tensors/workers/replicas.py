"""Trains replicas whose parameters are compared, with one of several optimizers: `replicas.py KIND RANK`.

A bit of the parameters of RANK is flipped after a step.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist.capture.tensors.choice import Observers
from tests.support.ranks.rank import join, leave, rank, start_capture

WIDTH = 12
STEPS, FLIPPED_AFTER = 9, 3


def replica() -> DistributedDataParallel:
    """A model with dropout, so that ranks draw different random numbers."""
    torch.manual_seed(rank())
    return DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(), nn.Linear(WIDTH, 1)))


def optimizers(kind: str, models: list[DistributedDataParallel]) -> list[Any]:
    """One for each model."""
    if kind == "zero":
        return [ZeroRedundancyOptimizer(one.parameters(), torch.optim.Adam, lr=0.01) for one in models]
    return [torch.optim.Adam(one.parameters(), lr=0.01) for one in models]


def main() -> None:
    """Train."""
    kind, bad_rank = sys.argv[1], int(sys.argv[2])
    start_capture(observers=Observers(compare_parameters=1))
    join()
    models = [replica() for _ in range(2 if kind == "two_models" else 1)]
    steppers = optimizers(kind, models)
    for nth in range(STEPS):
        for model, optimizer in zip(models, steppers, strict=True):
            optimizer.zero_grad()
            (model(torch.randn(4, WIDTH)) ** 2).mean().backward()
            optimizer.step()
        if nth == FLIPPED_AFTER and rank() == bad_rank:
            weight: Any = models[-1].module[2].weight
            weight.data.view(torch.int32)[0, 5] ^= 1 << 3
    leave()


if __name__ == "__main__":
    main()
