"""A training as users write it: saves a checkpoint on SIGUSR1, and hangs, fails or ends as its arguments say."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def save_checkpoint(*_: object) -> None:
    """Leave a file that says that this rank was asked for a checkpoint."""
    Path(f"checkpoint-{os.environ['SLURM_JOB_ID']}-{dist.get_rank()}").touch()


def load_batch(what: str, step: int) -> torch.Tensor:
    """Return a batch; in the last rank and step 20, do what the test wants first."""
    if step == 20 and dist.get_rank() == dist.get_world_size() - 1:
        if what == "hang":
            time.sleep(3600)
        if what == "fail":
            raise ValueError("bad batch")
    return torch.ones(4)


def main(what: str) -> None:
    """Train for two seconds; without end, if the test ends it."""
    signal.signal(signal.SIGUSR1, save_checkpoint)
    dist.init_process_group("gloo")
    for step in range(100 if what in ("end", "fail") else 1_000_000):
        dist.all_reduce(load_batch(what, step))
        time.sleep(0.02)
    dist.destroy_process_group()


main(sys.argv[1])
