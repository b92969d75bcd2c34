"""A process that is not a rank and launches some; arguments: the start method, how many, and how the last one ends."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.support.ranks.rank import join, say


class TrainingError(Exception):
    """Ends the training."""


def train(index: int, end: str) -> None:
    """Train as a rank."""
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(index)
    join()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    if end == "raises" and index == dist.get_world_size() - 1:
        raise TrainingError
    if end == "returns":
        dist.barrier()


if __name__ == "__main__":
    method, ranks, way = sys.argv[1:]
    os.environ["WORLD_SIZE"] = ranks
    try:
        mp.start_processes(train, (way,), nprocs=int(ranks), start_method=method)
        say(ended="well")
    except mp.ProcessRaisedException as error:
        say(ended="TrainingError" in str(error))
