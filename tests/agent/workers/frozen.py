"""A job of one rank in an application built by PyInstaller; arguments are a store's file and the application."""

import sys

import torch
import torch.distributed as dist

sys.frozen = True
sys.executable = sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
print("trained")
