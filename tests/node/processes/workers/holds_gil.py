"""Rank 1 is late for rank 0, because it holds the GIL in native code; rank 2 holds its own, and no rank waits for it.

Each goes on when a byte is written to the pipe that the first argument and its rank name.
"""

from __future__ import annotations

import ctypes
import os
import sys

import torch
import torch.distributed as dist

from otel_torchdist.model.kinds import RunIdState
from tests.node.processes.workers.forked import run_ranks
from tests.support.ranks.rank import join, own_tape, rank, start_capture
from tests.support.waiting import until


def decode_batch() -> None:
    """Hold the GIL until a byte comes."""
    pipe = os.open(f"{sys.argv[1]}-{rank()}", os.O_RDWR)
    letter = ctypes.create_string_buffer(1)
    ctypes.PyDLL(None).read(pipe, letter, 1)
    os.close(pipe)


def train() -> None:
    """What each rank does."""
    capture = start_capture()
    join()
    pair = dist.new_group([0, 1])
    dist.barrier()
    until(lambda: own_tape(capture).status().run_id_state is RunIdState.AGREED)  # in a thread, which needs the GIL
    if rank() > 0:
        decode_batch()
    if rank() < 2:
        x = torch.ones(1)
        dist.all_reduce(x, group=pair)
        assert x.item() == 2.0
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_ranks(3, train)
