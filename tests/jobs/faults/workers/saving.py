"""The training script of `faulty.py`, saving checkpoints: something goes wrong on rank 1."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from tests.jobs.faults.workers import faulty
from tests.jobs.faults.workers.faulty import main
from tests.jobs.faults.workers.setting import gate, pids, rank

warnings.simplefilter("ignore")


def state() -> dict[str, Any]:
    """100,000 bytes, in two halves: each rank writes one of them."""
    return {name: torch.ones(12_500) for name in ("first", "second")}


class Storage(dcp.FileSystemWriter):
    """A storage on which something goes wrong, on rank 1."""

    def __init__(self, name: str, go_wrong: Callable[[], None]) -> None:
        super().__init__(pids.with_name(name))
        self.go_wrong = go_wrong

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write, after something has gone wrong."""
        if rank == 1:
            self.go_wrong()
        return super().write_data(plan, planner)


def be_full() -> None:
    """There is no room."""
    raise OSError(errno.ENOSPC, "No space left on device")


def hang() -> None:
    """The storage does not answer, for a while."""
    while gate.exists() and not time.sleep(0.05):  # hangs: all in one line, which the test expects in the stack
        pass


def die() -> None:
    """The process is killed while it writes."""
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def full_then_hangs() -> None:
    """The disk is full; the program goes on without that checkpoint, and the next one hangs."""
    with contextlib.suppress(dcp.api.CheckpointException):
        dcp.save(state(), storage_writer=Storage("lost", be_full))
    dcp.save(state(), storage_writer=Storage("saved", hang))


def killed() -> None:
    """The process dies."""
    dcp.save(state(), storage_writer=Storage("saved", die))


def two_threads() -> None:
    """A thread calls collectives of the group in which the others train; then nothing happens until the gate opens."""
    thread = threading.Thread(target=meet)
    thread.start()
    meet()
    thread.join()
    while gate.exists():
        time.sleep(0.05)


def meet() -> None:
    """Call collectives in a row."""
    mine = torch.ones(4)
    for _ in range(100):
        dist.all_reduce(mine)  # meets


if __name__ == "__main__":
    faulty.GOOD_STEPS = 1
    faulty.FAULTS = {one.__name__: one for one in (full_then_hangs, killed, two_threads)}
    main()
