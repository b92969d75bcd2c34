"""Whether a process is let run at all: threads of a suspended one do not change places, those that wait for the GIL do.

A Python thread that waits for the GIL wakes up every 5 ms to ask for it (`sys.getswitchinterval`). So the heartbeat's
own thread shows in the kernel's counts that the process runs, though it cannot beat. In a process that is stopped,
frozen by its cgroup or paused with its container no count grows, and no file of the cgroup need be in reach to see it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

MAX_THREADS: Final = 1_024
_COUNTS: Final = re.compile(rb"ctxt_switches:\s*(\d+)")


class ContextSwitches:
    """Compares how often the kernel has switched the threads of a process with what it was at the look before."""

    def __init__(self, pid: int) -> None:
        """Nothing has been compared; `pid` is of this PID namespace."""
        self._tasks = Path(f"/proc/{pid}/task")
        self._counts: dict[str, int] = {}
        self._busy = ""

    def have_grown(self) -> bool:
        """Whether a thread has run since the last call; False at the first."""
        # The thread that waits for the GIL is likely to be the same again: then no other one need be read.
        if self._busy and (count := self._read(self._busy)) > self._counts[self._busy]:
            self._counts[self._busy] = count
            return True
        before, self._counts = self._counts, {thread: self._read(thread) for thread in self._threads()}
        grown = [thread for thread, count in self._counts.items() if 0 <= before.get(thread, count) < count]
        self._busy = grown[0] if grown else ""
        return bool(grown)

    def forget(self) -> None:
        """The next call is a first one."""
        self._counts, self._busy = {}, ""

    def _threads(self) -> list[str]:
        try:
            return os.listdir(self._tasks)[:MAX_THREADS]
        except OSError:
            return []

    def _read(self, thread: str) -> int:
        """How often a thread was switched; -1 where the kernel does not say."""
        try:
            counts = _COUNTS.findall((self._tasks / thread / "status").read_bytes())
        except OSError:
            return -1
        return sum(map(int, counts)) if counts else -1
