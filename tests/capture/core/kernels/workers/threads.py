"""Threads that communicate at the same time, each in its own groups, from two lines each."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

from tests.capture.core.kernels.test_threads import GROUPS, ROUNDS, THREADS
from tests.support.ranks.rank import join, say, start_capture

start_capture()
join()
groups = [[dist.new_group([0]) for _ in range(GROUPS)] for _ in range(THREADS)]
start = threading.Barrier(THREADS)
results = [0.0] * THREADS


def train(thread: int) -> None:
    """Make the calls of one thread."""
    tensor = torch.ones(4)
    start.wait()
    for _ in range(ROUNDS):
        for group in groups[thread]:
            dist.all_reduce(tensor, group=group)
            work = dist.all_reduce(tensor, group=group, async_op=True)
            work.wait()
    results[thread] = float(tensor.sum())


threads = [threading.Thread(target=train, args=(index,)) for index in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say(results=results)
dist.destroy_process_group()
