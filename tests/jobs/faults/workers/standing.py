"""The training script of `faulty.py`, calling no operation for long. In `locked` ranks wait until the gate is open."""

from __future__ import annotations

import subprocess
import sys
import time

import torch
from torch.utils.file_baton import FileBaton

from tests.jobs.faults.workers import faulty
from tests.jobs.faults.workers.faulty import main
from tests.jobs.faults.workers.setting import gate

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


if __name__ == "__main__":
    faulty.GOOD_STEPS = 1
    torch.set_num_threads(1)
    faulty.FAULTS = {one.__name__: one for one in (locked, evaluates, builds)}
    main()
