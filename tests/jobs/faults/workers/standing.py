"""Jobs that call no operation for long: `standing.py CASE GATE PIDS`. In `locked` they wait until the gate is open."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.file_baton import FileBaton

case, gate, pids = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
gradient = torch.ones(4)
LONG_S = 9.0
"""Twice as long as a job may stand still here."""
SPINS = f"import time; end = time.monotonic() + {LONG_S}\nwhile time.monotonic() < end: pass"


def locked() -> None:
    """All ranks wait for a lock that nobody holds any more."""
    FileBaton(str(gate)).wait()  # locked


def evaluates() -> None:
    """All ranks compute, each for itself."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))


def builds() -> None:
    """All ranks wait for a compiler that works."""
    subprocess.run([sys.executable, "-c", SPINS], check=True)


CASES: dict[str, Callable[[], None]] = {one.__name__: one for one in (locked, evaluates, builds)}


def main() -> None:
    """Run steps until the job is watched, the case, and some more steps."""
    (pids / str(rank)).write_text(f"{os.getpid()}\n")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=os.environ["STORE"], rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    unwatched = Path(os.environ["UNWATCHED"])
    gradient[0] = 1.0
    while gradient[0]:
        gradient.fill_(float(unwatched.exists()))
        dist.all_reduce(gradient)
        time.sleep(0.05)
    CASES[case]()
    dist.all_reduce(gradient)
    dist.destroy_process_group()


main()
