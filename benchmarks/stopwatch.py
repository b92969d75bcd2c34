"""Times a function on a machine shared with other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Elapsed:
    """The time that a function took on the calling thread, in nanoseconds.

    Attributes:
        own: Time including waits for locks, the GIL and I/O, but without waits for a processor.
        waited: Time of waits for a processor used by other threads or processes; 0 if Linux does not report it.
    """

    own: int
    waited: int


def time_of(work: Callable[[], object]) -> Elapsed:
    """Call a function once, and time it."""
    began = time.perf_counter_ns()
    waited = _waited_ns()
    started = time.perf_counter_ns()
    work()
    ended = time.perf_counter_ns()
    waited = _waited_ns() - waited
    # The thread may have lost its processor while it read its waiting time: that wait does not count.
    reading = started - began + time.perf_counter_ns() - ended
    waited = max(0, waited - reading)
    return Elapsed(ended - started - waited, waited)


def _waited_ns() -> int:
    """Return the total time for which this thread has been runnable without a processor."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0
