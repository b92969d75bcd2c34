"""Two ranks check whether tensors are freed once their callers have released them, with our own thread stopped."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.support.ranks.rank import join, rank, say, start_capture
from tests.support.waiting import until


def look(name: str, communicate: Callable[[torch.Tensor], Any]) -> None:
    """Communicate, wait, and check that the tensor is freed. gloo's thread may hold the last reference."""
    tensor = torch.ones(2)
    watched = weakref.ref(tensor)
    work = communicate(tensor)
    if work is not None:
        work.wait()
    del tensor, work
    until(lambda: watched() is None, timeout_s=10.0)
    say(freed=name)


warnings.simplefilter("ignore", FutureWarning)
capture = start_capture()
join()
capture._rank_thread.stop(timeout_s=5.0)
gc.disable()
other = 1 - rank()
look("all_reduce", dist.all_reduce)
look("all_reduce, asynchronous", lambda tensor: dist.all_reduce(tensor, async_op=True))
look("reduce_scatter", lambda tensor: dist.reduce_scatter_tensor(torch.empty(1), tensor, async_op=True))
directions: list[tuple[str, Callable[..., Any]]] = [("isend", dist.isend), ("irecv", dist.irecv)]
for way, operation in directions if rank() == 0 else reversed(directions):
    look(way, lambda tensor, operation=operation: operation(tensor, other))
