"""Worker 1 is in no group; workers 0 and 2 are ranks 1 and 0 of one.

With argument `first` they make the group before RPC, with `later` in a function that worker 1 has them run.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import rpc

from otel_torchdist.model.kinds import RunIdState
from tests.support.ranks import rank as own
from tests.support.ranks import rpc_worker
from tests.support.waiting import until

worker = own.rank()


def make_group() -> None:
    """Make the group of workers 0 and 2."""
    store = f"file://{os.environ[own.STORE]}-group"
    dist.init_process_group("gloo", init_method=store, rank=int(worker == 0), world_size=2, timeout=own.TIMEOUT)


def train() -> float:
    """What worker 1 has the others run."""
    if not dist.is_initialized():
        make_group()
    ones = torch.ones(2)
    dist.all_reduce(ones)
    time.sleep(0.1)
    return float(ones.sum())


def has_agreed(of: int) -> Path:
    """The file that shows that a worker's tape has its run id."""
    return Path(f"{os.environ[own.STORE]}-agreed-{of}")


def main() -> None:
    """Run the job."""
    capture = own.start_capture()
    if sys.argv[1] == "first" and worker != 1:
        make_group()
    rpc_worker.join(worker, 3)
    tape = own.own_tape(capture)
    until(lambda: tape.status().run_id_state is RunIdState.AGREED)
    has_agreed(worker).touch()
    if worker == 1:
        until(lambda: all(has_agreed(other).exists() for other in range(3)))  # a new group ends the agreement
        futures = [rpc.rpc_async(f"worker{to}", train, timeout=0) for to in (0, 2)]
        own.say(sums=[future.wait() for future in futures])
    rpc.shutdown()
    if worker != 1:
        dist.destroy_process_group()
    capture.uninstall()


main()
