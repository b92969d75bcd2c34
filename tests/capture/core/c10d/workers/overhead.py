"""One rank whose every second sampled call needs a new plan. Reports the total time of its calls."""

import time

import torch
import torch.distributed as dist

from otel_torchdist import mark_step
from otel_torchdist.capture.core.c10d.hot_path import OVERHEAD_SAMPLE
from tests.support.ranks.rank import join, leave, own_tape, say, start_capture

TRIES = 3
NEW = 6


def deep(calls: int, size: int) -> None:
    """Issue a new kind of collective below many frames, which are recorded when the call is planned."""
    if calls:
        deep(calls - 1, size)
    else:
        dist.all_reduce(torch.ones(size))


torch.set_num_threads(1)
capture = start_capture()
join()
mark_step()  # otherwise the ends of steps, which are records too, come every 64 collectives
tape = own_tape(capture)
tensor = torch.ones(4)
dist.all_reduce(tensor)
number = max(one.number for one in tape.poll().ended)
size = len(tensor)
for _ in range(TRIES):
    before, begun_ns = tape.status(), time.monotonic_ns()
    for _ in range(NEW):
        while (number + 1) % (2 * OVERHEAD_SAMPLE):
            dist.all_reduce(tensor)
            number += 1
        size += 1
        deep(100, size)
        number += 1
    took_ns = time.monotonic_ns() - begun_ns
    say(overhead_ns=tape.status().overhead_ns - before.overhead_ns, took_ns=took_ns)
leave()
