"""A program that raises at random moments, by a signal or from another thread, while it communicates.

Arguments: `signal` or `thread`, and how many times. Each exception has to arrive; no record may stay open, and no call
may stay in memory.
"""

from __future__ import annotations

import ctypes
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from otel_torchdist.capture.core.calls.call import OpenCall
from tests.support.ranks.rank import own_tape, say, start_capture
from tests.support.waiting import until

LONGEST_S = 0.0004
ATTEMPTS_S = 5.0


class Deadline(Exception):
    """The exception that the program raises."""


class BySignal:
    """A timer whose handler raises."""

    raised = 0

    def __init__(self) -> None:
        signal.signal(signal.SIGALRM, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        self.raised += 1
        raise Deadline

    def arm(self) -> None:
        """Have it raise soon."""
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, LONGEST_S))


class ByThread:
    """A thread that raises an exception in this one, as func_timeout and stopit do."""

    raised = 0

    def __init__(self) -> None:
        self._armed = threading.Semaphore(0)
        self._target = threading.get_ident()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        raise_in: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc
        arguments = ctypes.c_ulong(self._target), ctypes.py_object(Deadline)
        while self._armed.acquire():
            time.sleep(random.uniform(0.0, LONGEST_S))
            self.raised += 1
            raise_in(*arguments)

    def arm(self) -> None:
        """Have it raise soon."""
        self._armed.release()


def communicates() -> Callable[[], None]:
    """The interrupted code: collectives, synchronous and not, waits, and steps of an optimizer."""
    tensor, gathered = torch.ones(4), [torch.ones(4)]
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def run() -> None:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        work = dist.all_gather(gathered, tensor, async_op=True)
        assert work is not None
        work.wait()
        dist.broadcast(tensor, 0)
        optimizer.step()

    return run


def run_until_raised(source: BySignal | ByThread, run: Callable[[], None]) -> None:
    """Repeat until an exception is raised, at any point."""
    before = source.raised
    give_up = time.monotonic() + ATTEMPTS_S
    source.arm()
    # An exception that does not arrive shows in the count; one more call may still be in flight.
    while source.raised == before or time.monotonic() < give_up:
        run()
        if source.raised > before:
            time.sleep(0)
            run()
            return


def main() -> None:
    """Raise exceptions, count their arrival, and check for open records at the end."""
    kind, times = sys.argv[1], int(sys.argv[2])
    capture = start_capture()
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    reader = own_tape(capture)
    source = BySignal() if kind == "signal" else ByThread()
    run = communicates()
    run()  # torch imports something in the first step, and takes an exception there for a failed import
    caught = lost = 0
    for _ in range(times):
        try:
            run_until_raised(source, run)
        except Deadline:
            caught += 1
            continue
        lost += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    run()  # the last exception may have been raised in a step of the optimizer, which this one ends
    recorder = capture.current_recorder()
    assert recorder is not None
    until(lambda: not recorder.tape.open_numbers())  # our thread sees ends that nobody waited for
    given_to_gloo = torch.distributed.distributed_c10d._get_default_group()._get_sequence_number_for_group()
    sequence = max(one.sequence for one in reader.poll().ended)
    seen_open = len(reader.open_operations()) + len(reader.open_activities())
    gc.collect()  # an exception may have left frames that form cycles
    held = sum(type(one) is OpenCall for one in gc.get_objects())
    say(
        raised=source.raised, caught=caught, lost=lost, seen_open=seen_open, held=held, sequence=sequence,
        given_to_gloo=given_to_gloo,
    )  # fmt: skip


main()
