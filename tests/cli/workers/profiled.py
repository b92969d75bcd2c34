"""Two ranks: the first computes and then waits in all_reduce for the second, which sleeps; it has a stuck child.

Arguments: what the job does (nothing else), a gate, a file that is removed to end the job, and a directory for process
ids. Beside the gate the first rank leaves its child's process id and the file that the child reads.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

gate, pids = Path(sys.argv[2]), Path(sys.argv[3])
rank = int(os.environ["RANK"])
COMPUTES_S, WAITS_S = 0.05, 0.05


def compute() -> None:
    """Hold the GIL, mostly."""
    end = time.monotonic() + COMPUTES_S
    while time.monotonic() < end:
        sum(range(1000))


def doze() -> None:
    """A thread of the program's."""
    while gate.exists():
        time.sleep(0.05)


def have_child() -> int:
    """A child that reads what never comes."""
    path = gate.with_name("shard")
    os.mkfifo(path)
    child = os.fork()
    if child == 0:
        os.read(os.open(path, os.O_RDWR), 1)
        os._exit(0)
    return child


def main() -> None:
    """Train until the end."""
    child = have_child() if rank == 0 else 0
    dist.init_process_group(
        "gloo", init_method=os.environ["STORE"], rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    threading.Thread(target=doze, name="dozing", daemon=True).start()
    if child:
        gate.with_name("child").write_text(f"{child}\n")
    (pids / str(rank)).write_text(f"{os.getpid()}\n")
    is_going = torch.ones(1)
    while is_going.all():
        if rank == 0:
            compute()
        else:
            time.sleep(COMPUTES_S + WAITS_S)
        is_going.fill_(float(gate.exists()))
        dist.all_reduce(is_going, op=dist.ReduceOp.MIN)
    if child:
        os.kill(child, 9)
        os.waitpid(child, 0)
    dist.destroy_process_group()


main()
