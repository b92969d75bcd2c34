"""Waiting for a condition, for a limited time; and how long a process had to wait for a core."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeVar

SHORTEST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 0.1

T = TypeVar("T")


def until(
    condition: Callable[[], T | Literal[False] | None], timeout_s: float = 60.0, what: str | Callable[[], str] = ""
) -> T:
    """Poll a condition until its result is truthy, and return that result.

    Args:
        condition: What is polled.
        timeout_s: Seconds after which the test fails.
        what: What to show then, or what finds that out; the condition itself if empty.
    """
    deadline, pause_s = time.monotonic() + timeout_s, SHORTEST_PAUSE_S
    while not (found := condition()):
        if time.monotonic() >= deadline:
            shown = what() if callable(what) else what
            raise AssertionError(f"not within {timeout_s:g} s: {shown or condition}")
        time.sleep(pause_s)
        pause_s = min(1.3 * pause_s, LONGEST_PAUSE_S)
    return found


def waited_for_a_core_s(pid: int | None = None) -> float:
    """Seconds for which the current threads of a process were runnable but did not run: the tolerance to add to bounds.

    Args:
        pid: The process; this one by default.
    """
    waited_ns = 0
    for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            waited_ns += int((task / "schedstat").read_text().split()[1])
    return waited_ns / 1e9
