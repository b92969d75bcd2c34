"""A training loop of one all-reduce per step, in which one rank does something special at one step.

Arguments: what that rank does, a gate beside whose file a pipe gets a byte when it is opened, and a directory in which
each rank leaves its process id.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from otel_torchdist import mark_step

SPECIAL_STEP = 5
STEPS = 12

deed, gate, pids = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def load_batch() -> torch.Tensor:
    """Stay in one line until a byte comes: tests expect it in stacks."""
    pipe = os.open(f"{gate}.pipe", os.O_RDWR)
    os.read(pipe, 1)
    os.close(pipe)
    return torch.ones(4)


def decode_batch() -> None:
    """Hold the GIL in native code until a byte comes."""
    pipe = os.open(f"{gate}.pipe", os.O_RDWR)
    ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
    os.close(pipe)


dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=world_size)
(pids / str(rank)).write_text(f"{os.getpid()}\n")
for step in range(STEPS):
    if step == SPECIAL_STEP and rank == world_size // 2:
        if deed == "is late":
            load_batch()
        elif deed == "holds the GIL":
            decode_batch()
        elif deed == "fails":
            raise ValueError("a batch without labels")
        elif deed == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError:
        if deed != "dies":
            raise
        while True:  # until it is killed too
            time.sleep(0.02)
    mark_step()
    time.sleep(0.02)
dist.destroy_process_group()
