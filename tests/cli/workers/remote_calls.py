"""A worker of RPC with two threads; the argument says what worker 0 has them do, and each leaves its process id.

`starved`: two calls to worker 1, each of which calls worker 0, which calls worker 1, with no thread left for that.
`long`: a call that lasts as long as the job, as a trainer's does.
`circle`: a call whose function is in a collective that its caller has yet to enter.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import rpc

from tests.support.ranks import rpc_worker

rank = int(os.environ["RANK"])
DEPTH = 8


def nested(depth: int) -> int:
    """Call the other worker from within a call."""
    time.sleep(0.2)
    return depth if depth == DEPTH else rpc.rpc_sync(f"worker{1 - rank}", nested, (depth + 1,), timeout=5)


def run_trainer() -> None:
    """Train, until the job is killed."""
    time.sleep(600)


def reduce() -> None:
    """Sum up with the other worker."""
    dist.all_reduce(torch.ones(2))


def main() -> None:
    """Run the job."""
    deed, _, pids = sys.argv[1:]
    (Path(pids) / str(rank)).write_text(f"{os.getpid()}\n")
    if deed == "circle":
        dist.init_process_group("gloo", init_method=f"{os.environ['STORE']}-group", rank=rank, world_size=2)
        reduce()
    os.environ["STORE"] = os.environ["STORE"].removeprefix("file://")  # as it expects
    rpc_worker.join(rank, int(os.environ["WORLD_SIZE"]), threads=2, timeout_s=0)
    if deed == "starved" and rank == 0:
        for future in [rpc.rpc_async("worker1", nested, (0,)) for _ in range(2)]:
            future.wait()
    if deed == "long" and rank == 0:
        with contextlib.suppress(RuntimeError):  # worker 1 is killed in the end
            rpc.rpc_sync("worker1", run_trainer)
        time.sleep(600)
    if deed == "circle" and rank == 0:
        rpc.rpc_sync("worker1", reduce)
    rpc.shutdown()


main()
