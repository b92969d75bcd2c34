"""An uninstrumented script with two default groups, one after the other. Exits with the code of its argument."""

from __future__ import annotations

import sys
import threading

import torch
import torch.distributed as dist

from tests.support.ranks.rank import join, say

for attempt in range(2):
    join(suffix=str(attempt))
    x = torch.ones(3)
    dist.all_reduce(x)
    dist.destroy_process_group()
say(result=x.tolist(), threads=sorted(t.name for t in threading.enumerate() if t.name.startswith("otel")))
sys.exit(int(sys.argv[1]))
