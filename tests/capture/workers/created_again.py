"""Two ranks create the default group three times, with subgroups of the same name."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.support.ranks.rank import join, start_capture

capture = start_capture()
for attempt in range(3):
    join(suffix=f"-{attempt}")
    pair = dist.new_group([0, 1])
    again = dist.new_group([0, 1])
    for _ in range(attempt + 1):
        dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(2), group=pair)
    dist.all_reduce(torch.ones(3), group=again)
    dist.destroy_process_group()
