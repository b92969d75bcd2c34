"""How processes live and end, as far as their node's agent has seen it."""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

BY_CGROUP: Final = "cgroup"
BY_NODE: Final = "node"
UNINTERRUPTIBLE_NS: Final = 3_000_000_000
"""A process in uninterruptible sleep for less reads from a disk."""
SLEEPS_UNINTERRUPTIBLY: Final = "D"
STOPPED_STATES: Final[Mapping[str, str]] = {
    "T": "stopped by a signal",
    "t": "held by a debugger",
    SLEEPS_UNINTERRUPTIBLY: "in uninterruptible sleep",
}
"""State letters in `/proc/<pid>/stat` of processes that do not run, and what they mean."""
CRASHES: Final = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that a process raises itself when it crashes."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a rank's process.

    Attributes:
        at_ns: When it ended, by the monotonic clock; no two deaths seen by one agent have the same time.
        resolution_ns: How much later than the actual end that may be; 0 if the kernel gave the order of the ends.
        status: Its wait status, as returned by `os.wait`; None when not known.
        oom: Which counter recorded an out-of-memory kill then: `cgroup` (the rank's own), `node`, or '' for neither.
        stopped: State letter (see `/proc/<pid>/stat`) if it was not running when last checked; '' if it was.
        stopped_since_ns: Since when it was in that state; 0 if it was running.
        ran_ns: When it was last seen to run without a heartbeat, according to the kernel; 0 for never.
        with_others: Whether other processes of the job that a signal had killed were on their way to their end already.
        outlives_request: Whether SIGTERM alone would not have ended it: its program handles, ignores or blocks it.
        launcher: The name of its parent process.
        error: Type and first line of the exception that ended it, from torchelastic's error file; '' if not known.
        asked: The signal that had asked it to end before; 0 for none that was recorded. Not in the file.
        asked_ns: When that came.
    """

    at_ns: int
    resolution_ns: int = 0
    status: int | None = None
    oom: str = ""
    stopped: str = ""
    stopped_since_ns: int = 0
    ran_ns: int = 0
    with_others: bool = False
    outlives_request: bool = False
    launcher: str = ""
    error: str = ""
    asked: int = 0
    asked_ns: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether its order among other exact deaths on its node comes from the kernel."""
        return self.resolution_ns == 0

    @property
    def signal(self) -> int:
        """The signal that killed it; 0 when none did, or when that is not known."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else 0

    @property
    def signal_name(self) -> str:
        """The name of that signal, such as `SIGKILL`; '' when no signal killed it."""
        return name_signal(self.signal) if self.signal else ""

    @property
    def exit_code(self) -> int | None:
        """The code with which it exited; None when it did not exit, or when that is not known."""
        return os.WEXITSTATUS(self.status) if self.status is not None and os.WIFEXITED(self.status) else None

    @property
    def exited_in_error(self) -> bool:
        """Whether it exited with an error code; codes from 128 on state a signal, which the program has handled."""
        return self.exit_code is not None and 0 < self.exit_code < 128

    @property
    def crashed_at_exit(self) -> bool:
        """Of a rank whose script was done: whether it crashed while its libraries were unloaded.

        A program that handles SIGTERM may have been asked to end before.
        """
        return self.signal in CRASHES and not self.outlives_request


def name_signal(number: int) -> str:
    """The name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class RankLife(enum.Enum):
    """What became of a rank."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    """It reported the exception that ended it, or its script ended with an error code."""
    DEAD = "dead"
    """It disappeared without reporting why."""

    @property
    def ended_badly(self) -> bool:
        """Whether the rank is over and did not finish."""
        match self:
            case RankLife.RUNNING | RankLife.FINISHED:
                return False
            case RankLife.FAILED | RankLife.DEAD:
                return True


class Lifetime(NamedTuple):
    """From when to when a rank lived, as far as that is known.

    Attributes:
        began_ns: When its tape was created.
        seen_ns: The latest time at which it is known to have lived.
        alive: Whether it lives.
        id_is_sure: False while the id of its run may still be the one of an earlier attempt.
    """

    began_ns: int
    seen_ns: int
    alive: bool
    id_is_sure: bool = True

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are known to have lived at the same time."""
        return self.reaches(other.began_ns) and other.reaches(self.began_ns)

    def reaches(self, moment_ns: int) -> bool:
        """Whether it is known not to have ended before a moment."""
        return self.alive or self.seen_ns >= moment_ns


@dataclass(frozen=True, slots=True)
class Stopped:
    """A process that the kernel does not let run.

    Attributes:
        state: One of `STOPPED_STATES`.
        since_ns: Since when it has been seen in that state without interruption.
    """

    state: str
    since_ns: int

    @property
    def meaning(self) -> str:
        """The state in words, such as `stopped by a signal`."""
        return STOPPED_STATES.get(self.state, "not running")

    def is_frozen(self, now_ns: int) -> bool:
        """Whether it is more than a read of a disk, which sleeps uninterruptibly often, but only briefly."""
        return self.state != SLEEPS_UNINTERRUPTIBLY or now_ns - self.since_ns >= UNINTERRUPTIBLE_NS
