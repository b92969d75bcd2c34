"""Trains a little; as rank and size are in the environment, or as arguments with a file in which the ranks meet."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    """Join the others, and take a step."""
    timeout = timedelta(seconds=float(os.environ["LAUNCH_TIMEOUT_S"]))
    file = os.environ.get("LAUNCH_FILE")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if file:
        dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=size, timeout=timeout)
    else:
        dist.init_process_group("gloo", timeout=timeout)
    dist.all_reduce(torch.ones(4))
    if "LAUNCH_CRASHES" in os.environ:
        sys.stdout.flush()
        os._exit(1)
    if rank == 0 and "LAUNCH_GATE" in os.environ:
        sys.stdin.read()  # until the test closes it
    dist.destroy_process_group()


main()
