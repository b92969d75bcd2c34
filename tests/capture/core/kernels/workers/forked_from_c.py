"""A child that is forked by C, without Python's hooks, communicates."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.ranks.rank import say, start_capture

CALLS = 100
TRIES = 8
"""A child hangs in CPython where a thread of the parent waited for the GIL at the fork: its condition variable has a
waiter then that does not exist."""


def of_parent() -> None:
    """A call of the parent."""
    dist.all_reduce(torch.ones(4))


def of_child() -> None:
    """Calls of the child from lines, and with shapes, that the dictionary does not have."""
    for _ in range(CALLS):
        of_parent()
    dist.broadcast(torch.ones(3), 0)


capture = start_capture()
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
of_parent()
recorder = capture.current_recorder()
assert recorder is not None
tape = recorder.tape
names = tape.path.with_suffix(".names")
sys.setswitchinterval(100)  # a thread that asks for the GIL at the fork would ask the child, which has no such thread
for _ in range(TRIES):
    size, number = names.stat().st_size, tape.next_number()
    child = ctypes.PyDLL(None).fork()
    if not child:
        signal.alarm(5)
        of_child()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != -signal.SIGALRM:
        break
say(code=code, names=names.stat().st_size - size, written=tape.next_number() - number)
of_parent()
dist.destroy_process_group()
