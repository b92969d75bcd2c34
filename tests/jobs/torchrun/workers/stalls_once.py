"""A script whose rank 1 hangs in the first attempt: `stalls_once.py asleep|in_c`. It does not import this package."""

import itertools
import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
gradient = torch.ones(4)
for _ in range(10):
    dist.all_reduce(gradient)
    time.sleep(0.05)
if dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if sys.argv[1] == "in_c":
        sum(itertools.repeat(1, 10**13))  # with the GIL
    time.sleep(600)
dist.all_reduce(gradient)
print("trained to the end", flush=True)
dist.destroy_process_group()
