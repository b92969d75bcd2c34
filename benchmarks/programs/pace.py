"""Orders for the processes that communicate at a steady rate, and their answers. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TICK_S: Final = 0.01
SYNCHRONOUS: Final = 5
ASYNCHRONOUS: Final = 5
"""Operations of each tick; they are waited for in the next one, so that at any time some are open."""
TICKS_PER_STEP: Final = 10
OPERATIONS_PER_SECOND: Final = round((SYNCHRONOUS + ASYNCHRONOUS) / TICK_S)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to communicate.

    Attributes:
        warm_up_s: Before the first window.
        windows: Number of windows, for each of which figures are taken.
        window_s: Length of each.
    """

    warm_up_s: float
    windows: int
    window_s: float


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """One rank's answer.

    Attributes:
        percent: Share of a core that each thread of ours has used in each window, by the thread's name; threads that
            are not Python's count as one.
        issued: Collectives since it was switched on.
    """

    percent: Mapping[str, list[float]]
    issued: int
