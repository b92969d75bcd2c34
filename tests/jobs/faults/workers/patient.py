"""The training script of `faulty.py`, without a fault: rank 0 keeps the others waiting for long."""

from __future__ import annotations

import os
import signal
import time

import torch.distributed as dist

from otel_torchdist import expect_wait
from tests.jobs.faults.workers import faulty
from tests.jobs.faults.workers.faulty import main
from tests.jobs.faults.workers.setting import gradient, rank

long_s = float(os.environ["LONG_S"])


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


if __name__ == "__main__":
    faulty.GOOD_STEPS = 1
    faulty.FAULTS = {one.__name__: one for one in (evaluation, download, checkpoint, requests, debugger)}
    main()
