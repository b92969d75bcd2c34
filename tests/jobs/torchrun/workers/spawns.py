"""A program that spawns its ranks, and another module's worker in them; its own standard error is a pipe or a file."""

import os
import runpy
import sys
from pathlib import Path

import torch.multiprocessing as mp


def run(rank: int) -> None:
    """Be a rank."""
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    runpy.run_path(str(Path(__file__).with_name("crashes_at_once.py")))


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[3], WORLD_SIZE="2")
    mp.spawn(run, nprocs=2)
