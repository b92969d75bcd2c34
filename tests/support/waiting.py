"""Waiting for a condition, for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, TypeVar

PAUSE_S: Final = 0.01

T = TypeVar("T")


def until(condition: Callable[[], T | Literal[False] | None], timeout_s: float = 60.0, what: object = "") -> T:
    """Poll a condition until its result is truthy, and return that result.

    Args:
        condition: What is polled.
        timeout_s: Seconds after which the test fails.
        what: What to show then; the condition itself if empty.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what or condition}"
        time.sleep(PAUSE_S)
    return found
