"""One rank that switches recording on and off again and again, with the kernels in turns, and calls the same lines."""

from __future__ import annotations

import os
from itertools import cycle, islice

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE
from tests.support.ranks.rank import join, start_capture

SESSIONS = 12
TIMES = 4

join()
ones = torch.ones(4)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(3):  # DDP settles its buckets
    model(ones).sum().backward()
for kernel in islice(cycle(("native", "python")), SESSIONS):
    os.environ[OTEL_PYTHON_TORCHDIST_CAPTURE] = kernel
    capture = start_capture()
    for _ in range(TIMES):
        model(ones).sum().backward()
        work = dist.all_reduce(ones, async_op=True)
        assert work is not None
        work.wait()
    capture.uninstall()
dist.destroy_process_group()
