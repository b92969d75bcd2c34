"""One rank that begins and ends its default group again and again, without Python's garbage collector."""

from __future__ import annotations

import gc
import os

import torch
import torch.distributed as dist

from tests.support.ranks.rank import say, start_capture
from tests.support.waiting import until

TIMES = 12


def tapes() -> int:
    """The number of mapped tapes."""
    with open("/proc/self/maps") as maps:
        return sum(line.rstrip().endswith((".tape", ".tape (deleted)", ".new")) for line in maps)


gc.disable()
start_capture()
found = []
for _ in range(TIMES):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.new_group([0])
    for size in range(1, 4):
        dist.all_reduce(torch.ones(size), async_op=True).wait()
        dist.all_reduce(torch.ones(size), group=group)
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()
    dist.destroy_process_group()
    del group
    until(lambda: not tapes(), 5)  # other threads may still hold the last one for a moment
    found.append([tapes(), len(os.listdir("/proc/self/fd"))])
say(found=found)
