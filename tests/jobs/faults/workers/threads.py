"""The training script of `faulty.py`, with faults of ranks that wait unseen, or on more than one thread."""

from __future__ import annotations

import os
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.jobs.faults.workers import faulty
from tests.jobs.faults.workers.faulty import main
from tests.jobs.faults.workers.setting import gradient, healthy, is_faulty, rank, size


def bucket() -> None:
    """The last rank alone calls something in another group, while the others reduce DDP's gradients."""
    metrics = dist.new_group(group_desc="metrics")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    if is_faulty:
        dist.all_reduce(gradient, group=metrics)
    model(torch.ones(2, 4)).sum().backward()


def saver() -> None:
    """The last rank's saver does not come to where those of the others wait; rank 0's main thread joins its own."""
    savers = dist.new_group(group_desc="savers")

    def save() -> None:
        if is_faulty:
            os.read(os.pipe()[0], 1)  # a file system that does not answer
        dist.all_reduce(torch.ones(1), group=savers)

    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    if rank == 0:
        thread.join()
    dist.all_reduce(gradient)
    thread.join()


def shared() -> None:
    """A thread that logs uses the group in which the main thread trains; on the last rank it comes first."""
    turn = 0.0 if healthy else 0.5

    def log() -> None:
        time.sleep(0.0 if is_faulty else turn)
        dist.all_reduce(torch.ones(1))

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    if healthy:
        thread.join()
    time.sleep(turn if is_faulty else 0.0)
    dist.all_gather([torch.ones(4) for _ in range(size)], gradient)
    thread.join()


if __name__ == "__main__":
    faulty.FAULTS = {step.__name__: step for step in (bucket, saver, shared)}
    main()
