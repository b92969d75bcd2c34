"""Orders for the processes that communicate at a steady rate, and their answers. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TICK_S: Final = 0.01
SYNCHRONOUS: Final = 5
ASYNCHRONOUS: Final = 5
"""Asynchronous operations per tick. The next tick waits for them, so that some are always in flight."""
TICKS_PER_STEP: Final = 10
OPERATIONS_PER_SECOND: Final = round((SYNCHRONOUS + ASYNCHRONOUS) / TICK_S)


@dataclass(frozen=True, slots=True)
class Pace:
    """The duration of the communication.

    Attributes:
        warm_up_s: Seconds before the first window.
        windows: Number of measured windows.
        window_s: Seconds per window.
    """

    warm_up_s: float
    windows: int
    window_s: float


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """The answer of one rank.

    Attributes:
        percent: Percent of a core used by each of our threads in each window, by the name of the thread. All threads
            unknown to Python count as one.
        issued: Number of collectives since recording was switched on.
    """

    percent: Mapping[str, list[float]]
    issued: int
