"""Lifetimes and deaths of processes, as observed by the agent of their node."""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

BY_CGROUP: Final = "cgroup"
BY_NODE: Final = "node"
"""Values of `Death.oom`."""
UNINTERRUPTIBLE_NS: Final = 3_000_000_000
"""Shorter uninterruptible sleeps are ordinary disk reads."""
SLEEPS_UNINTERRUPTIBLY: Final = "D"
STOPPED_STATES: Final[Mapping[str, str]] = {
    "T": "stopped by a signal",
    "t": "held by a debugger",
    SLEEPS_UNINTERRUPTIBLY: "in uninterruptible sleep",
}
"""State letters in `/proc/<pid>/stat` of processes that do not run, with their meanings."""
RAY: Final = "raylet"
"""Name of the process that starts the workers of Ray on a node."""
CRASHES: Final = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals of a crash, raised by the process itself."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a rank's process.

    Attributes:
        at_ns: Time of the end on the monotonic clock. Deaths observed by one agent have distinct times.
        resolution_ns: How much earlier the process may have ended; 0 if the kernel gave the order of the ends.
        status: Wait status, as returned by `os.wait`; None if unknown.
        oom: The counter that recorded an out-of-memory kill: `cgroup` (the rank's own), `node`, or '' for neither.
        stopped: State letter (see `/proc/<pid>/stat`) if the process was not running when last checked; else ''.
        stopped_since_ns: When that state began; 0 if the process was running.
        ran_ns: When the kernel last showed the process running without a heartbeat; 0 for never.
        with_others: Whether signals were also killing other processes of the job, so that this death may be a result.
        survives_sigterm: Whether SIGTERM alone would not have ended it: its program handles, ignores or blocks it.
        launcher: The name of the parent process.
        error: Type and first line of the exception that ended it, from torchelastic's error file; '' if unknown.
        asked: The signal that had asked the process to end; 0 if none was recorded. Not stored in the death file.
        asked_ns: When that signal arrived.
    """

    at_ns: int
    resolution_ns: int = 0
    status: int | None = None
    oom: str = ""
    stopped: str = ""
    stopped_since_ns: int = 0
    ran_ns: int = 0
    with_others: bool = False
    survives_sigterm: bool = False
    launcher: str = ""
    error: str = ""
    asked: int = 0
    asked_ns: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether the kernel gave its order among the exact deaths on its node."""
        return self.resolution_ns == 0

    @property
    def signal(self) -> int:
        """The signal that killed the process; 0 if none did, or if unknown."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else 0

    @property
    def signal_name(self) -> str:
        """The name of that signal, such as `SIGKILL`; '' if no signal killed the process."""
        return name_signal(self.signal) if self.signal else ""

    @property
    def exit_code(self) -> int | None:
        """The exit code; None if the process did not exit, or if unknown."""
        return os.WEXITSTATUS(self.status) if self.status is not None and os.WIFEXITED(self.status) else None

    @property
    def exited_in_error(self) -> bool:
        """Whether the process exited with an error code. Codes from 128 on stand for a signal that it handled."""
        return self.exit_code is not None and 0 < self.exit_code < 128 and not self.is_killed_by_ray

    @property
    def is_killed_by_ray(self) -> bool:
        """Whether the process ended as a worker does that `ray.kill` ends: with exit code 1.

        Ray Train ends all its workers in this way, also after a successful training.
        """
        return self.launcher == RAY and self.exit_code == 1

    @property
    def crashed_at_exit(self) -> bool:
        """Whether a rank whose script had finished crashed while its libraries were unloaded.

        A program that handles SIGTERM is excluded: it may have been asked to end before.
        """
        return self.signal in CRASHES and not self.survives_sigterm


def name_signal(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class RankLife(enum.Enum):
    """The state of a rank's life."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    """The rank reported the exception that ended it, or its script ended with an error code."""
    DEAD = "dead"
    """The rank disappeared without reporting why."""

    @property
    def ended_badly(self) -> bool:
        """Whether the rank is over and did not finish."""
        match self:
            case RankLife.RUNNING | RankLife.FINISHED:
                return False
            case RankLife.FAILED | RankLife.DEAD:
                return True


class Lifetime(NamedTuple):
    """The known lifetime of a rank.

    Attributes:
        began_ns: When its tape was created.
        seen_ns: The latest time when it was known to be alive.
        id_is_sure: False while its run id may still be the id of an earlier attempt.
    """

    began_ns: int
    seen_ns: int
    alive: bool
    id_is_sure: bool = True

    def overlaps(self, other: Lifetime) -> bool:
        """Return whether both are known to have been alive at the same time."""
        return self.reaches(other.began_ns) and other.reaches(self.began_ns)

    def reaches(self, moment_ns: int) -> bool:
        """Return whether the rank is known to have been alive at a moment or later."""
        return self.alive or self.seen_ns >= moment_ns


@dataclass(frozen=True, slots=True)
class Stopped:
    """A process that the kernel does not let run.

    Attributes:
        state: One of `STOPPED_STATES`.
        since_ns: When the process entered that state; it has not left it since.
    """

    state: str
    since_ns: int

    @property
    def meaning(self) -> str:
        """The state in words, such as `stopped by a signal`."""
        return STOPPED_STATES.get(self.state, "not running")

    def is_frozen(self, now_ns: int) -> bool:
        """Return whether this is more than a disk read, which sleeps uninterruptibly but only briefly."""
        return self.state != SLEEPS_UNINTERRUPTIBLY or now_ns - self.since_ns >= UNINTERRUPTIBLE_NS
