"""A backend written in Python whose Works cannot report whether they are complete.

Waits for some of its operations, keeps the Work of another until later, drops a third, and has a forked child wait for
a fourth.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import HashStore, Work  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from tests.support.ranks.rank import say, start_capture
from tests.support.waiting import until

CALLS = 6
KEPT_S = 1.2


class MuteWork(Work):
    """A Work that only knows its end after a wait. torch sees its C++ base, which is never complete."""

    def is_completed(self) -> bool:
        """Refuse to answer."""
        raise NotImplementedError

    def wait(self, timeout: Any = None) -> bool:
        """End at once."""
        return True


class MuteBackend(Backend):
    """A backend with only these operations."""

    def allreduce(self, tensors: Any, options: Any = None) -> MuteWork:
        """Reduce."""
        return MuteWork()

    def broadcast(self, tensors: Any, options: Any = None) -> MuteWork:
        """Broadcast."""
        return MuteWork()

    def name(self) -> str:
        """The backend's own name."""
        return "mute"

    def getBackendName(self) -> str:
        """The same for torch 2.8."""
        return "mute"


def make(store: Any, rank: int, size: int, timeout: Any) -> MuteBackend:
    """Create the backend, with the signature that torch requires."""
    return MuteBackend(rank, size)


def begin() -> None:
    """Create the default group with it."""
    dist.Backend.register_backend("mute", make, devices=["cpu"])
    dist.init_process_group("mute", rank=0, world_size=1, store=HashStore())


def can_begin_without_us() -> bool:
    """Return whether torch supports it: torch 2.8 cannot create it, and torch 2.15 crashes with it on Python 3.13.0."""
    child = os.fork()
    if child == 0:
        try:
            begin()
        finally:
            os._exit(0 if dist.is_initialized() else 1)
    return os.waitpid(child, 0)[1] == 0


if not can_begin_without_us():
    say(cannot_begin=True)
    sys.exit()
start_capture()
begin()
kept = dist.all_reduce(torch.ones(3), async_op=True)
dropped = dist.all_reduce(torch.ones(5), async_op=True)
for _ in range(CALLS):
    dist.broadcast(torch.ones(3), 0)
time.sleep(KEPT_S)
assert kept is not None
kept.wait()
late = dist.all_reduce(torch.ones(7), async_op=True)
assert late is not None
late.wait()
works = [weakref.ref(work) for work in (kept, dropped, late)]
del kept, dropped, late
until(lambda: not any(work() for work in works))
inherited = dist.all_reduce(torch.ones(9), async_op=True)
assert inherited is not None
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # since Python 3.12
child = os.fork()
if child == 0:
    inherited.wait()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
say()
