"""One rank that switches recording on and off again and again, and calls the same lines each time."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.support.rank import join, start_capture

SESSIONS = 12
TIMES = 4

join()
ones = torch.ones(4)
for _ in range(SESSIONS):
    capture = start_capture()
    for _ in range(TIMES):
        dist.all_reduce(ones)
        work = dist.all_reduce(ones, async_op=True)
        assert work is not None
        work.wait()
    capture.uninstall()
dist.destroy_process_group()
