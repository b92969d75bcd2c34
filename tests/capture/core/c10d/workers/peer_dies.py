"""Rank 1 dies while rank 0 has an operation in flight for which it does not wait."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from tests.support.ranks.rank import join, own_tape, rank, say, start_capture
from tests.support.waiting import until

capture = start_capture()
join()
dist.barrier()
if rank() == 1:
    os._exit(7)
work = dist.all_reduce(torch.ones(4), async_op=True)
tape = own_tape(capture)
tape.poll()
until(lambda: tape.poll() and not tape.open_operations())
try:
    work.wait()
except RuntimeError as error:
    say(raised=type(error).__name__)
os._exit(0)
