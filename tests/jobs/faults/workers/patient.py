"""Healthy jobs that wait for long: `patient.py CASE GATE PIDS`. Rank 0 keeps the others waiting."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from otel_torchdist import expect_wait

case, pids = sys.argv[1], Path(sys.argv[3])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
long_s = float(os.environ["LONG_S"])
gradient = torch.ones(4)


def evaluation() -> None:
    """Rank 0 evaluates, and has announced it."""
    if rank == 0:
        with expect_wait(10 * long_s):
            time.sleep(long_s)
    dist.all_reduce(gradient)


def download() -> None:
    """Rank 0 downloads first; that barrier is on the list of ignored operations."""
    if rank == 0:
        time.sleep(long_s)
    dist.barrier()


def checkpoint() -> None:
    """Rank 0 writes a checkpoint repeatedly."""
    for _ in range(3):
        dist.all_reduce(gradient)
        if rank == 0:
            time.sleep(long_s)
        dist.barrier()


def requests() -> None:
    """The others wait for requests, and have announced it."""
    if rank == 0:
        time.sleep(long_s)
        dist.broadcast(gradient, 0)
    else:
        with expect_wait(float("inf")):
            dist.broadcast(gradient, 0)


def debugger() -> None:
    """Rank 0 is stopped, as by a debugger, after it has announced it; its child resumes it."""
    if rank == 0:
        with expect_wait(10 * long_s):
            me = os.getpid()
            if os.fork() == 0:
                time.sleep(long_s)
                os.kill(me, signal.SIGCONT)
                os._exit(0)
            os.kill(me, signal.SIGSTOP)
    dist.all_reduce(gradient)


CASES: dict[str, Callable[[], None]] = {
    one.__name__: one for one in (evaluation, download, checkpoint, requests, debugger)
}


def main() -> None:
    """Run steps until the job is watched, the case, and some more steps."""
    (pids / str(rank)).write_text(f"{os.getpid()}\n")
    dist.init_process_group(
        "gloo", init_method=os.environ["STORE"], rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    unwatched = Path(os.environ["UNWATCHED"])
    while gradient[0]:
        gradient.fill_(float(unwatched.exists()))
        dist.all_reduce(gradient)
        time.sleep(0.05)
    CASES[case]()
    for _ in range(5):
        dist.all_reduce(gradient)


if __name__ == "__main__":
    main()
