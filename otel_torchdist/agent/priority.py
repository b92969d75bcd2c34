"""The agent's place behind training: where all cores are busy it reads with a small share of one, and never with more.

At nice 5 it weighs a third of a rank. It is not put at the very end (nice 19, SCHED_IDLE): there, a pass over the
tapes that takes 10 ms would take a second where foreign programs keep all cores busy, and a verdict some seconds.

It is scheduled as a batch process: when it wakes, it waits for its turn and interrupts no rank.

Linux may group processes by session first (`sched_autogroup_enabled`). It then weighs the agent, which has a session
of its own, as much as all ranks of the node together, whatever its nice value is. So its session is weighed too.

While a verdict may be due soon, and while it starts, it stands beside training like any other process: a rank that
waits does not need the core, and the verdict must not come late. The weight of a session may be given back
by anyone; a nice value only by root, or as far as `RLIMIT_NICE` allows.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final

NICE: Final = 5
"""Added to the nice value that the agent has inherited, and that of its session: a weight of 335 against 1,024."""
CALM_S: Final = 5.0
"""How long nothing must have been urgent, the start included, before the agent gives way."""

_AUTOGROUP: Final = "/proc/self/autogroup"
_THREADS: Final = "/proc/self/task"


class Priority:
    """The priority of this process, of all its threads. Not thread-safe."""

    def __init__(self, weighs_session: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Leave it as it is for now.

        Args:
            weighs_session: Whether the session of this process is weighed too. It is only if it is the agent's alone.
            clock: Returns the monotonic time in seconds.
        """
        self._now = clock
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._policy, self._param = os.sched_getscheduler(0), os.sched_getparam(0)
        self._urgent_s = clock()
        self._is_behind = False
        self._weighs_session = weighs_session and _has_own_session()
        self._is_session_behind = False

    def update(self, is_urgent: bool) -> None:
        """Give way to training, unless a verdict may be due soon or was a moment ago."""
        now_s = self._now()
        if is_urgent:
            self._urgent_s = now_s
        is_behind = now_s - self._urgent_s >= CALM_S
        if self._is_behind is not is_behind:
            self._is_behind = is_behind
            self._place_threads(is_behind)
        if self._weighs_session and self._is_session_behind is not is_behind:
            self._place_session(is_behind)

    def _place_threads(self, is_behind: bool) -> None:
        """Threads have nice values and policies of their own, which those that they start inherit."""
        nice = min(self._nice + NICE, 19) if is_behind else self._nice
        policy, param = (os.SCHED_BATCH, os.sched_param(0)) if is_behind else (self._policy, self._param)
        for thread in map(int, os.listdir(_THREADS)):
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setscheduler(thread, policy, param)
            with contextlib.suppress(OSError):  # or may not have more than it has
                os.setpriority(os.PRIO_PROCESS, thread, nice)

    def _place_session(self, is_behind: bool) -> None:
        try:
            with open(_AUTOGROUP, "w") as file:
                file.write(str(NICE if is_behind else 0))
            self._is_session_behind = is_behind
        except BlockingIOError:  # the kernel changes it at most ten times a second: the next turn tries again
            return
        except OSError:  # this kernel does not group processes by session
            self._weighs_session = False


def _has_own_session() -> bool:
    """Whether the session is the agent's alone: a terminal's has a leader; one that ranks start has lost its."""
    leader = os.getsid(0)
    return leader == os.getpid() or (leader != 0 and not os.path.exists(f"/proc/{leader}"))
