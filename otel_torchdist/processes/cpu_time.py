"""How much of a core a rank uses, with the processes that it has started, while it calls no operations.

A rank that evaluates, prepares data or compiles works itself, or has children that do. One that waits for a lock, a
file or a server does not: it sleeps, or looks every so often.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from otel_torchdist.processes.children import children_of
from otel_torchdist.tape.identity import TapeIdentity, process_state, shares_pids, stat_fields

QUIET_NS: Final = 2_000_000_000
"""Of a rank that has called an operation within this time, nothing is measured."""
BETWEEN_NS: Final = 2_000_000_000
MAX_DEPTH: Final = 3
MAX_PROCESSES: Final = 64
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12
"""Fields of `/proc/<pid>/stat`, counted from the state letter."""


class CpuTime:
    """Measures one rank, from time to time."""

    def __init__(self, identity: TapeIdentity) -> None:
        """Measure the writer of a tape, unless its pid belongs to another PID namespace or boot."""
        self._pid, self._began = identity.pid, identity.pid_start_ticks
        self._is_in_reach = shares_pids(identity)
        self._measured_ns = 0
        self._ticks: dict[int, int] = {}
        self._busy: float | None = None

    def check(self, now_ns: int, called_ns: int) -> float | None:
        """Return the share of a core that it used lately, above 1 for several; None if it calls, or is out of reach."""
        if not self._is_in_reach or now_ns - called_ns < QUIET_NS:
            self._measured_ns, self._busy = 0, None
        elif now_ns - self._measured_ns >= BETWEEN_NS:
            self._measure(now_ns)
        return self._busy

    def _measure(self, now_ns: int) -> None:
        state = process_state(self._pid)
        before, before_ns = self._ticks, self._measured_ns
        self._ticks = ticks_of_tree(self._pid) if state is not None and state[1] == self._began else {}
        self._measured_ns = now_ns
        is_known = bool(before_ns and before)
        self._busy = share_between(before, self._ticks, (now_ns - before_ns) / 1e9) if is_known else None


def share_between(before: Mapping[int, int], after: Mapping[int, int], seconds: float) -> float:
    """Return the share of a core that processes have used between two readings of `ticks_of_tree`.

    Of a child that has come meanwhile it is not known what it used before; that it came is work.
    """
    return sum(max(ticks - before.get(pid, 0), 0) for pid, ticks in after.items()) / _TICKS / seconds


def ticks_of_tree(pid: int) -> dict[int, int]:
    """Return the clock ticks that a process and those that it has started have used, by pid."""
    found: dict[int, int] = {}
    level = [pid]
    for _ in range(MAX_DEPTH):
        for one in level:
            try:
                fields = stat_fields(one)
            except OSError:
                continue
            found[one] = int(fields[_USER]) + int(fields[_SYSTEM])
        level = [child for one in level for child in children_of(one)][: MAX_PROCESSES - len(found)]
    return found
