"""Times work on a machine that is shared with other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Elapsed:
    """How long the calling thread took, in nanoseconds.

    Attributes:
        own: Including waits for locks, the GIL and I/O, but not for a processor.
        waited: Wait for a processor that other threads or processes had; 0 where Linux does not report it.
    """

    own: int
    waited: int


def time_of(work: Callable[[], object]) -> Elapsed:
    """Do work once and time it."""
    began = time.perf_counter_ns()
    waited = _waited_ns()
    started = time.perf_counter_ns()
    work()
    ended = time.perf_counter_ns()
    waited = _waited_ns() - waited
    # The thread may also have lost its processor while it read how long it had waited: that wait is not the work's.
    reading = started - began + time.perf_counter_ns() - ended
    waited = max(0, waited - reading)
    return Elapsed(ended - started - waited, waited)


def _waited_ns() -> int:
    """For how long this thread has been runnable without a processor, in total."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0
