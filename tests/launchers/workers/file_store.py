"""Ranks of mpirun that meet in a file, without an address in their environment."""

import os
import sys
import time

import torch
import torch.distributed as dist

rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=size)
if rank == 1:
    time.sleep(float(sys.argv[2]))
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
