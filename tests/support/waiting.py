"""Waiting for a condition, for a limited time; and how long a process had to wait for a core."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
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


def core_waits_s(pid: int | None = None) -> dict[str, float]:
    """Seconds for which each current thread of a process was runnable but did not run, by thread id."""
    waits_s: dict[str, float] = {}
    for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            waits_s[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return waits_s


def waited_for_a_core_s(pid: int | None = None, since: Mapping[str, float] | None = None) -> float:
    """Seconds for which the current threads of a process were runnable but did not run: the tolerance to add to bounds.

    Args:
        pid: The process; this one by default.
        since: The result of `core_waits_s` from which on to count; each thread's whole life by default.
    """
    before = since or {}
    return sum(waited_s - before.get(thread, 0.0) for thread, waited_s in core_waits_s(pid).items())


def lag_s(pids: Iterable[int]) -> float:
    """The most that one of these processes has waited for a core in its life: the tolerance where it is late."""
    lags_s = [0.0]
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            lags_s.append(waited_for_a_core_s(pid))
    return max(lags_s)
