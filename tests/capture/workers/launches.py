"""A process that is no rank and launches two, by the start method of its argument; the second argument is their end."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.support.rank import join, say


class TrainingError(Exception):
    """What ends a training."""


def train(index: int, end: str) -> None:
    """A rank."""
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(index)
    join()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    if end == "raises" and index == 1:
        raise TrainingError
    dist.barrier() if end == "returns" else None


if __name__ == "__main__":
    os.environ["WORLD_SIZE"] = "2"
    try:
        mp.start_processes(train, (sys.argv[2],), nprocs=2, start_method=sys.argv[1])
        say(ended="well")
    except mp.ProcessRaisedException as error:
        say(ended="TrainingError" in str(error))
