"""Whether a rank's process runs, as the kernel reports it: stopped, held by a debugger, suspended, or running.

A Python thread that waits for the GIL wakes up every 5 ms to ask for it (`sys.getswitchinterval`). So the heartbeat's
own thread shows in the kernel's counts that the process runs, though it cannot beat. In a process that is stopped,
frozen by its cgroup or paused with its container no count grows, and no file of the cgroup need be in reach to see it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.tape.identity import process_state, shares_pids
from otel_torchdist.tape.records import TapeIdentity

_DOES_NOT_RUN: Final = frozenset("TtD")
SILENT_NS: Final = 1_200_000_000
"""A heart that has not beaten for so long may be held up: only then does it matter whether the process runs."""


class ProcessState:
    """Looks at the process that writes a tape, and remembers since when it has not run.

    Attributes:
        ran_ns: When it was last seen to have run though its heart did not beat; 0 for never.
    """

    def __init__(self, identity: TapeIdentity) -> None:
        """Look at the writer of a tape. A pid of another PID namespace or boot means nothing here."""
        self._identity = identity
        self._is_in_reach = shares_pids(identity)
        self._stopped: Stopped | None = None
        self._switches = ContextSwitches(identity.pid)
        self.ran_ns = 0

    def look(self, now_ns: int, heartbeat_ns: int) -> Stopped | None:
        """How it is prevented from running now; None when it runs, or when that cannot be known.

        Args:
            now_ns: The time.
            heartbeat_ns: When its heart beat last.
        """
        state = self._letter()
        if not state or now_ns - heartbeat_ns < SILENT_NS:
            self._switches.forget()
        elif self._switches.have_grown():
            self.ran_ns = now_ns
        if state not in _DOES_NOT_RUN:
            self._stopped = None
        elif self._stopped is None or self._stopped.state != state:
            self._stopped = Stopped(state, now_ns)
        return self._stopped

    def _letter(self) -> str:
        found = process_state(self._identity.pid) if self._is_in_reach else None
        return found[0] if found is not None and found[1] == self._identity.pid_start_ticks else ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A process that the kernel does not let run.

    Attributes:
        state: Its letter in `/proc/<pid>/stat`: T (stopped), t (held by a debugger) or D (uninterruptible sleep).
        since_ns: When it was first seen like that, without a break since.
    """

    state: str
    since_ns: int


HEARTBEAT_LATE_NS: Final = 3_000_000_000
"""It beats once a second; when it is this late, the process's Python threads do not run."""


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
