"""One rank that ends in the given way while its device is in the middle of its queue."""

import os
import sys

import torch
import torch.distributed as dist

from tests.support.ranks.rank import STORE, start_capture

device = torch.device("cuda", 0)
torch.cuda.set_device(device)
how, capture = sys.argv[1:]
if capture == "recorded":
    start_capture()
store = f"file://{os.environ[STORE]}-{capture}"
dist.init_process_group("nccl", init_method=store, rank=0, world_size=1, device_id=device)
tensor = torch.ones(8, device=device)
dist.all_reduce(tensor)
torch.cuda._sleep(2_000_000_000)
dist.all_reduce(tensor)
dist.all_reduce(tensor, async_op=True)
if how == "raise":
    raise ValueError("the training failed")
if how == "exit":
    sys.exit(3)
