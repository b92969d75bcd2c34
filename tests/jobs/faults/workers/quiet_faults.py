"""Faults that stall nothing: calls that silently do not match, odd values, and ranks that are slow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from tests.jobs.faults.workers.setting import gate, gradient, healthy, is_faulty, rank, size

group: dist.ProcessGroup | None = None
"""In which a fault that stalls nothing shows."""


def use_group(chosen: dist.ProcessGroup | None) -> None:
    """Have the next fault show in a group of its own."""
    global group
    group = chosen


def silent_splits() -> None:
    """The last rank sends the first one a row less than that one expects, which gloo does not notice."""
    expected = [3] * size
    sent = [2, *expected[1:]] if is_faulty else expected
    for _ in range(2):
        dist.all_to_all_single(torch.empty(3 * size, 4), torch.ones(sum(sent), 4), expected, sent, group=group)
        dist.all_reduce(gradient, group=group)


def silent_order() -> None:
    """The last of four ranks creates two of the groups first: those of a number meet, whatever their members are."""
    pairs = [[0, 2], [1, 3], [0, 1], [2, 3]]
    for pair in [*pairs[2:], *pairs[:2]] if is_faulty else pairs:
        dist.new_group(pair)


def silent_dtype() -> None:
    """The last rank reduces elements of another type, of the same length: gloo does not complain."""
    dist.all_reduce(torch.ones(4, dtype=torch.int32) if is_faulty else gradient, group=group)


def nan() -> None:
    """The last rank brings a value that is not a number, in one operation among many."""
    values = torch.ones(1_000)
    if is_faulty:
        values[500] = float("nan")
    dist.all_reduce(values, group=group)


def overwritten() -> None:
    """The last rank writes into the result of an operation before it has waited for it."""
    values = torch.ones(1_000)
    work = dist.all_reduce(values, group=group, async_op=True)
    if is_faulty:
        while not bool((values == size).all()):  # another rank may be late
            time.sleep(0.01)
        time.sleep(0.5)  # gloo has passed it on, too
        values[500] += 1
    assert work is not None
    work.wait()


def short_dtype() -> None:
    """The same in a job that is over a moment later."""
    dist.all_reduce(torch.ones(4, dtype=torch.int32) if is_faulty else gradient)
    for _ in range(20):  # the odd one is not among the latest calls at the end
        dist.all_reduce(gradient)


def failing_dtype() -> None:
    """The same in a job that fails a moment later, for another reason."""
    short_dtype()
    if rank == 0 and not healthy:
        raise ValueError("a broken batch")
    if not healthy:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)


def transposed() -> None:
    """The last rank reduces a tensor that it has transposed: the same number of bytes, in another layout."""
    dist.all_reduce(torch.ones(8, 4) if is_faulty else torch.ones(4, 8), group=group)


def silent_reduce_op() -> None:
    """The last rank takes the maximum where the others sum: gloo does not complain."""
    pause_s = float(os.environ.get("SILENT_PAUSE_S", 0))
    for _ in range(100):  # the odd one is not among the latest calls at the next poll
        dist.all_reduce(gradient, group=group)
        gradient.fill_(1.0)
        time.sleep(pause_s)
    dist.all_reduce(gradient, op=dist.ReduceOp.MAX if is_faulty else dist.ReduceOp.SUM, group=group)
    for _ in range(100):
        gradient.fill_(1.0)
        dist.all_reduce(gradient, group=group)
        time.sleep(pause_s)


def straggler() -> None:
    """The last rank computes for 30 % longer in every step, until the gate is removed.

    A window of 64 calls takes more than the 5 s for which stragglers are observed before they are judged.
    """
    stop = torch.zeros(1)
    while not healthy and not stop.item():
        time.sleep(0.082 if is_faulty else 0.063)
        stop.fill_(float(not gate.exists()))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)


class Samples(IterableDataset[int]):
    """Samples without end, of which each takes a while; on the last rank 30 % longer."""

    def __iter__(self) -> Iterator[int]:
        while True:
            time.sleep(0.082 if is_faulty else 0.063)
            yield 0


def slow_data() -> None:
    """The last rank waits for longer for its data in every step, until the gate is removed."""
    stop = torch.zeros(1)
    for _ in DataLoader(Samples()):
        stop.fill_(float(not gate.exists()))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if healthy or stop.item():
            break


def slow_line() -> None:
    """The last rank computes for 24 ms more before the second call of every step, until the gate is removed."""
    weight = torch.nn.Parameter(torch.zeros(16))
    optimizer = torch.optim.SGD([weight])
    stop = torch.zeros(1)
    while not healthy and not stop.item():
        time.sleep(0.04)
        dist.all_reduce(torch.ones(16))
        time.sleep(0.024 if is_faulty else 0.0)
        stop.fill_(float(not gate.exists()))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)  # slow line
        weight.grad = torch.ones(16)
        optimizer.step()
