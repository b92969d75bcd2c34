"""Two ranks: rank 0 ends in the way that its argument names, with an operation in flight; rank 1 never joins it.

With a second argument `off` nothing is recorded.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.ranks.rank import STORE, join, rank, start_capture
from tests.support.waiting import until


class TrainingError(Exception):
    """Ends the training."""


def returns() -> None:
    """Return, at the end of the script."""


def raises() -> None:
    """Raise an exception that is never caught."""
    raise TrainingError("it ends here")


def exits() -> None:
    """Exit with another code, from an exception handler."""
    try:
        raise ValueError
    except ValueError:
        sys.exit(3)


def exits_at_once() -> None:
    """Exit without Python noticing."""
    os._exit(4)


def is_killed() -> None:
    """Die by SIGKILL, without a chance to react."""
    os.kill(os.getpid(), signal.SIGKILL)


def is_terminated() -> None:
    """Be terminated, as by a launcher that stops all ranks."""
    os.kill(os.getpid(), signal.SIGTERM)


gone = Path(os.environ[STORE] + "-gone")
way: Callable[[], None] = globals()[sys.argv[1]]
if sys.argv[2] == "on":
    start_capture()
join()
dist.barrier()
dist.barrier()
if rank() == 1:
    until(gone.exists)
    os._exit(0)
work = dist.all_reduce(torch.ones(5), async_op=True)
dist.irecv(torch.ones(6), 1)
gone.touch()
way()
