"""Reuses the addresses of Works, memory and sessions, for calls recorded in Python or in another session."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.ranks.rank import own_tape, say, start_capture
from tests.support.tapes.recorded import read_tape

TIMES = 60
SESSIONS = 6
capture = start_capture(8192)
ones = torch.ones(64)
functional = torch.ops._c10d_functional


def begin() -> str:
    """Create the default group; returns its name."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    world = dist.group.WORLD
    assert world is not None
    return world.group_name


def new_shape(nth: int) -> torch.Tensor:
    """Return a tensor with a new shape and as many elements as the others."""
    return torch.ones((1,) * (1 + nth % 8) + (64,) + (1,) * (1 + nth // 8))


def works() -> None:
    """Works that nobody waits for, and a new shape, which Python records."""
    for nth in range(TIMES):
        for _ in range(5):
            dist.all_reduce(ones, async_op=True)
        work = dist.broadcast(new_shape(nth), 0, async_op=True)
        assert work is not None
        work.wait()


def memory(name: str) -> None:
    """The same, with waits that name memory."""
    for nth in range(TIMES):
        for _ in range(5):
            functional.all_reduce(ones, "sum", name)
        functional.wait_tensor(functional.all_gather_into_tensor(new_shape(nth), 1, name))


def empty(name: str) -> None:
    """Use tensors without elements, which all have the null address."""
    for _ in range(TIMES):
        functional.wait_tensor(functional.reduce_scatter_tensor(torch.ones(0), "sum", 2, name))
        functional.wait_tensor(torch.ones(0))


def in_sessions() -> list[list[str]]:
    """Make the same calls in several sessions. Return the kinds of end in each."""
    ends = []
    for _ in range(SESSIONS):
        gc.collect()  # the session before is freed
        begin()
        for _ in range(6):
            dist.all_reduce(ones)
        ends.append([operation.how for operation in read_tape(own_tape(capture)).operations])
        dist.destroy_process_group()
    return ends


group = begin()
works()
memory(group)
empty(group)
recorder = capture.current_recorder()
assert recorder is not None
before_first = bytes(recorder.tape.view()[12288 : 12288 + 128])
del recorder
dist.destroy_process_group()
say(ends=in_sessions(), before_first=before_first.hex())
