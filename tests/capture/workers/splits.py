"""Two ranks that split the default group twice, and use the split groups in different order."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.support.ranks.rank import join, rank, say, start_capture

start_capture()
join()
try:
    first, second = (dist.split_group(split_ranks=[[0, 1]], group_desc=name) for name in "ab")
except RuntimeError as error:  # torch before 2.14: gloo cannot be split on the CPU
    say(refused=str(error))
else:
    used = (first, second) if rank() == 0 else (second, first)
    works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for group in used]
    for work in works:
        work.wait()
    assert dist.split_group(split_ranks=[[0]], group_desc="alone") is not None or rank() == 1
dist.destroy_process_group()
