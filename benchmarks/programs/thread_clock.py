"""Reads the processor time of single threads of this process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import Final

NATIVE: Final = "native threads"

_TASKS: Final = Path("/proc/self/task")


def thread_ids() -> frozenset[int]:
    """Return the native ids of all threads of this process, including those unknown to Python."""
    return frozenset(int(name) for name in os.listdir(_TASKS))


def processor_ns(other_than: Set[int]) -> Counter[str]:
    """Return the nanoseconds of processor time of each Python thread, by name, and of all other threads together.

    Args:
        other_than: Native ids of threads to leave out.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    used: Counter[str] = Counter()
    for identity in thread_ids() - other_than:
        with contextlib.suppress(OSError):  # the thread has just ended
            used[names.get(identity, NATIVE)] += int((_TASKS / str(identity) / "schedstat").read_text().split()[0])
    return used
