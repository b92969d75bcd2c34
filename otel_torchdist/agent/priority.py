"""The agent's place behind training: where all cores are busy it reads with a small share of one, and never with more.

At nice 5 it weighs a third of a rank. It is not put at the very end (nice 19, SCHED_IDLE): there, a pass over the
tapes that takes 10 ms would take a second where foreign programs keep all cores busy, and a verdict some seconds.

It is scheduled as a batch process: when it wakes, it waits for its turn and interrupts no rank.

Linux may group processes by session first (`sched_autogroup_enabled`). It then weighs the agent, which has a session
of its own, as much as all ranks of the node together, whatever its nice value is. So its session is weighed too.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

NICE: Final = 5
"""Added to the nice value that the agent has inherited, and that of its session: a weight of 335 against 1,024."""

_AUTOGROUP: Final = "/proc/self/autogroup"
_TRIES: Final = 5
_PAUSE_S: Final = 0.11
"""The kernel changes a session's weight at most ten times a second."""


def give_way() -> None:
    """Put this process behind training. Called before it has threads: each thread has its own nice value."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def put_session_behind() -> None:
    """Put the session of this process behind others, if it is the agent's alone."""
    leader = os.getsid(0)
    if leader != os.getpid() and (not leader or os.path.exists(f"/proc/{leader}")):
        return  # a terminal's, say; an agent that ranks start has one whose leader has ended
    for _ in range(_TRIES):
        try:
            with open(_AUTOGROUP, "w") as file:
                file.write(str(NICE))
            return
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        except OSError:  # this kernel does not group processes by session
            return
