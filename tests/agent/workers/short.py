"""A job of one rank that is over before its agent can start."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
