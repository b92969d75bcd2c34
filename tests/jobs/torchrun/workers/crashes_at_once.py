"""Ranks of which the second ends by itself: at once, or when an agent looks on."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

how, when = sys.argv[1:3]
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
while when == "watched" and not [*Path(os.environ["OTEL_PYTHON_TORCHDIST_TAPE_DIR"]).glob("prometheus/*.json")]:
    time.sleep(0.05)


def evaluate() -> None:
    """End rank 1."""
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        os._exit(0)
    raise ValueError("no such metric")


if rank == 1:
    evaluate()
dist.all_reduce(torch.ones(8))
