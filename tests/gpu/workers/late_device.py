"""Two ranks: a collective to which the device of one comes late, then a message between the two."""

import os

import torch
import torch.distributed as dist

from tests.gpu.one_device import choose_device
from tests.support.ranks.rank import STORE, rank, start_capture

device = choose_device(rank())
start_capture()
dist.init_process_group("nccl", init_method=f"file://{os.environ[STORE]}", rank=rank(), world_size=2, device_id=device)
tensor = torch.ones(8, device=device)
dist.all_reduce(tensor)
torch.cuda.synchronize()
if rank() == 1:
    torch.cuda._sleep(3_000_000_000)
dist.all_reduce(tensor)
torch.cuda.synchronize()
if rank() == 0:
    dist.send(tensor, 1)
else:
    dist.recv(tensor, 0)
torch.cuda.synchronize()
dist.destroy_process_group()
