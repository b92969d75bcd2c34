"""A line that usually reduces with one op and sometimes with another, more often on rank 0.

The argument is the number of steps.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from tests.support.ranks.rank import SHOWS_REDUCE_OP, join, rank, say, start_capture

STEPS = 200


def reduce(tensor: torch.Tensor, op: object = dist.ReduceOp.SUM) -> None:
    """A helper function, as in real programs."""
    dist.all_reduce(tensor, op=op)


capture = start_capture()
join()
every = int(sys.argv[1])
for step in range(STEPS):
    if rank() == 0:
        reduce(torch.ones(1))
    else:
        dist.all_reduce(torch.ones(1))
    if step % every == every - 1:
        reduce(torch.ones(1), dist.ReduceOp.MAX)
say(tells=SHOWS_REDUCE_OP)
