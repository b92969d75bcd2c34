"""The setting of a faulty rank: its fault, which ranks there are, and the gate for which ranks wait that come late."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

fault, gate, pids = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
healthy = "healthy" in sys.argv
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
last = size - 1
is_faulty = rank == int(os.environ.get("FAULTY_RANK", last)) and not healthy
gradient = torch.ones(4)
GOOD_STEPS = int(os.environ.get("GOOD_STEPS", 30))


def wait_for_gate() -> None:
    """Wait as long as the gate exists."""
    while gate.exists():
        time.sleep(0.01)


def go_on(is_over: Callable[[], bool] = lambda: not gate.exists()) -> None:
    """Keep training, with a pause after each step, until it is over for a rank: usually when the gate is removed."""
    stop = torch.zeros(1)
    while not healthy and not stop.item():
        stop.fill_(float(is_over()))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        time.sleep(0.05)
