"""Calls from one line whose shapes never repeat. Reports the number of calls that Python recorded, and of names."""

from __future__ import annotations

import sys
from types import FrameType

import torch
import torch.distributed as dist

from otel_torchdist.capture.core.c10d.hot_path import HotPath
from tests.support.ranks.rank import join, rank, say, start_capture

TIMES = 500
capture = start_capture(8192)
join()
in_python = 0
pool = torch.ones(4 * TIMES)


def count(frame: FrameType, event: str, argument: object) -> None:
    """Count the calls that the kernel in Python gets."""
    global in_python
    in_python += event == "call" and frame.f_code is HotPath.enter.__code__


def reduce(size: int) -> None:
    """One tensor, with two reduce ops."""
    dist.all_reduce(pool[:size], op=(dist.ReduceOp.SUM, dist.ReduceOp.MAX)[size % 2])


def gather(size: int) -> None:
    """A list of tensors."""
    dist.all_gather([pool[:size], pool[TIMES : TIMES + size]], pool[:size])


def spread(size: int) -> None:
    """Broadcast: only the root contributes."""
    dist.broadcast(pool[:size], 1)


def take_turns(size: int) -> None:
    """Use another root each time, as in a loop over ranks."""
    dist.broadcast(pool[:size], size % 2)


sys.setprofile(count)
for nth in range(TIMES):
    for call in (reduce, gather, spread, take_turns):
        call(1 + nth)
sys.setprofile(None)
recorder = capture.current_recorder()
assert recorder is not None
say(rank=rank(), in_python=in_python, names=recorder.tape.names.intern("after all others"))
dist.destroy_process_group()
