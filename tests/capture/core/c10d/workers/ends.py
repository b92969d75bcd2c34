"""Two ranks end operations in every way. Each case has its own shape, by which the test identifies it."""

from __future__ import annotations

import _thread
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.ranks.rank import SHOWS_REDUCE_OP, join, own_tape, rank, say, start_capture
from tests.support.waiting import until


def raised_by(call: Callable[[], Any]) -> tuple[str, str, list[str]]:
    """Return type and text of the exception that a call raises, and our functions in its traceback."""
    try:
        call()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame.name for frame in frames if "/otel_torchdist/" in frame.filename]
        return type(error).__qualname__, str(error), ours
    raise AssertionError("it did not raise")


def refused() -> list[Any]:
    """Call a collective and a receive with arguments that c10d refuses."""
    group = dist.group.WORLD
    gather = raised_by(lambda: group.allgather([[torch.empty(3), torch.empty(3)]], [torch.ones(31)]))
    for _ in range(2):
        receive = raised_by(lambda: group.recv([torch.ones(32)], 0, -1))
    return [*gather, *receive]


def left_alone(other: int) -> list[Any]:
    """Issue operations that are never waited for."""
    never_waited = dist.irecv(torch.empty(11), other, tag=1)
    dist.irecv(torch.empty(12), other, tag=2)
    polled = dist.all_reduce(torch.ones(13), async_op=True)
    dist.all_reduce(torch.ones(14), async_op=True)
    dist.barrier()
    return [never_waited, polled]


def waited_for(other: int) -> None:
    """Issue operations that are waited for, in a different order."""
    first, second = dist.irecv(torch.empty(15), other, tag=3), dist.irecv(torch.empty(16), other, tag=3)
    works = [dist.isend(torch.ones(15), other, tag=3), dist.isend(torch.ones(16), other, tag=3)]
    second.wait()
    first.wait()
    for work in works:
        work.wait()
    twice = dist.all_reduce(torch.ones(17), async_op=True)
    twice.wait()
    twice.wait()


def from_functions() -> None:
    """Call functional collectives, whose Works exist only in C++. The second is waited for first, the last never."""
    group = dist.group.WORLD
    first = functional.reduce_scatter_tensor(torch.ones(22), "sum", 0, group)
    second = functional.reduce_scatter_tensor(torch.ones(24), "sum", 0, group)
    reduced = functional.all_reduce(torch.ones(25), "max", group)
    gathered = functional.all_gather_tensor(torch.ones(26), 0, group)
    functional.wait_tensor(second)
    assert (float(first[0]), float(reduced[0]), gathered.shape[0]) == (2.0, 1.0, 52)
    kept.append(functional.all_reduce(torch.ones(27), "sum", group))
    if hasattr(functional, "wait_tensors"):  # from torch 2.15 on
        several = [functional.reduce_scatter_tensor(torch.ones(size), "sum", 0, group) for size in (28, 30)]
        several.append(functional.all_reduce(torch.ones(33), "sum", group))
        first, _, third = functional.wait_tensors(several)
        assert (float(first[0]), float(third[0])) == (2.0, 2.0)


def from_c(tape: TapeReader) -> None:
    """Call from a thread that has no Python frame, as autograd's threads do."""
    options = dist.AllreduceOptions()
    options.asyncOp = True
    before = tape.words[LiveWord.NEXT_NUMBER]
    _thread.start_new_thread(dist.group.WORLD.allreduce, ([torch.ones(41)], options))

    def has_returned() -> bool:
        known = (*tape.poll().ended, *tape.open_operations())
        return any(one.number >= before and one.returned_ns is not None for one in known)

    until(has_returned)  # before that, gloo might get this thread's next call first


def labelled() -> None:
    """Set labels with `record_comm`, if this torch has it."""
    if hasattr(dist, "record_comm"):
        with dist.record_comm("FSDP::all_gather (layer1)"):
            dist.all_reduce(torch.ones(42))


def reduce_op_changes() -> None:
    """Call on the same line with another reduce op each time."""
    for op in [dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN] * 8:
        dist.all_reduce(torch.ones(43), op=op)


def too_late() -> tuple[tuple[str, str, list[str]], list[bool]] | None:
    """Time out in a wait, then wait successfully. Return the open operations in between."""
    slow = dist.new_group([0, 1], timeout=timedelta(seconds=30))
    dist.barrier(group=slow)
    if rank() == 1:
        dist.barrier()
    work = dist.all_reduce(torch.ones(51), group=slow, async_op=True)
    if rank() == 1:
        work.wait()
        return None
    raised = raised_by(lambda: work.wait(timedelta(milliseconds=100)))
    reader.poll()
    given_up = reader.open_operations()[-1]
    dist.barrier()
    work.wait()
    return raised, [given_up.is_blocking, given_up.waiting_since_ns == given_up.entered_ns]


warnings.simplefilter("ignore", FutureWarning)
join()
kept: list[Any] = []
other_rank = 1 - rank()
say(without_us=refused())
capture = start_capture()
reader = own_tape(capture)
dist.barrier()
say(with_us=refused())
dist.barrier()
kept += left_alone(other_rank)
waited_for(other_rank)
from_functions()
from_c(reader)
labelled()
reduce_op_changes()
# By now polls have found what only they can find, and our thread has released what was dropped.
reader.poll()
until(lambda: reader.poll() and len(reader.open_operations()) <= 1)
say(too_late=too_late(), tells_reduce_op=SHOWS_REDUCE_OP)
