"""Trains a little; as rank and size are in the environment, or as arguments with a file in which the ranks meet."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def wait_for(start: Path) -> None:
    """Show that this process is ready, and wait until the test has made the file."""
    start.with_name(f"{start.name}.{os.getpid()}").touch()
    while not start.exists():
        time.sleep(0.02)


def main() -> None:
    """Join the others, and take a step."""
    timeout = timedelta(seconds=float(os.environ["LAUNCH_TIMEOUT_S"]))
    file = os.environ.get("LAUNCH_FILE")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if "LAUNCH_START" in os.environ:
        wait_for(Path(os.environ["LAUNCH_START"]))
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
