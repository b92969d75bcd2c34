"""Two ranks, of which rank 0 ends in the way that its argument names, with an operation under way; rank 1 never joins.

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

from tests.support.rank import STORE, join, rank, start_capture, until


class TrainingError(Exception):
    """What ends a training."""


def returns() -> None:
    """The script simply ends."""


def raises() -> None:
    """Nobody catches it."""
    raise TrainingError("it ends here")


def exits() -> None:
    """With a code of its own, from where an error is handled."""
    try:
        raise ValueError
    except ValueError:
        sys.exit(3)


def exits_at_once() -> None:
    """Python does not notice."""
    os._exit(4)


def is_killed() -> None:
    """Nobody notices."""
    os.kill(os.getpid(), signal.SIGKILL)


def is_terminated() -> None:
    """As by a launcher that takes everybody down."""
    os.kill(os.getpid(), signal.SIGTERM)


def aborts() -> None:
    """As gloo does when sizes disagree."""
    os.abort()


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
