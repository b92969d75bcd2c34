"""Whether a rank's process runs, as the kernel reports it: stopped, held by a debugger, suspended, or running.

A Python thread that waits for the GIL wakes up every 5 ms to request it (`sys.getswitchinterval`). So the heartbeat
thread's context switches show that the process runs, even when it cannot beat. In a process that is stopped, frozen by
its cgroup or paused with its container no count grows, and no file of the cgroup needs to be accessible to see that.
"""

from __future__ import annotations

import os
import platform
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.model.lives import SLEEPS_UNINTERRUPTIBLY, STOPPED_STATES, Stopped
from otel_torchdist.model.naming import readable
from otel_torchdist.tape.identity import TapeIdentity, process_state, shares_pids, stat_fields

SILENT_NS: Final = 1_200_000_000
"""A heartbeat older than this may be held up: only then does it matter whether the process runs."""


class ProcessState:
    """Checks the process that writes a tape, and remembers since when it has not run.

    Attributes:
        ran_ns: When it was last seen to have run without a heartbeat; 0 for never.
    """

    def __init__(self, identity: TapeIdentity) -> None:
        """Check the writer of a tape, unless its pid belongs to another PID namespace or boot."""
        self._identity = identity
        self._is_in_reach = shares_pids(identity)
        self._stopped: Stopped | None = None
        self._switches = ContextSwitches(identity.pid)
        self.ran_ns = 0

    def check(self, now_ns: int, heartbeat_ns: int) -> Stopped | None:
        """Return how the process is prevented from running; None when it runs, or when that cannot be known.

        Args:
            now_ns: The time.
            heartbeat_ns: The time of its last heartbeat.
        """
        state = self._letter()
        is_silent = now_ns - heartbeat_ns >= SILENT_NS
        # One that is killed runs again, for its end only, which takes a large one long.
        is_ending = bool(state) and (is_silent or self._stopped is not None) and _is_ending(self._identity.pid)
        if is_ending and self._stopped is not None and self._stopped.state != SLEEPS_UNINTERRUPTIBLY:
            return self._stopped
        if not state or not is_silent:
            self._switches.forget()
        elif not is_ending and self._switches.have_grown():
            self.ran_ns = now_ns
        if state not in STOPPED_STATES:
            self._stopped = None
        elif self._stopped is None or self._stopped.state != state:
            self._stopped = Stopped(state, now_ns)
        return self._stopped

    def _letter(self) -> str:
        found = process_state(self._identity.pid) if self._is_in_reach else None
        return found[0] if found is not None and found[1] == self._identity.pid_start_ticks else ""


_PENDING: Final = re.compile(rb"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)", re.MULTILINE)
_SIGKILL: Final = 1 << (signal.SIGKILL - 1)
_EXITING: Final = 0x0004
_KILLED: Final = 0x0400
"""PF_EXITING and PF_SIGNALED of the kernel's `sched.h`: it frees its memory, or is about to."""


def _is_ending(pid: int) -> bool:
    """Whether a process has been killed or exits, although it still exists."""
    return _shows_end(pid, _EXITING | _KILLED)


def is_killed(pid: int) -> bool:
    """Whether a signal has killed a process that still exists."""
    return _shows_end(pid, _KILLED)


def _shows_end(pid: int, flags_of_end: int) -> bool:
    """Whether one of these flags is set, or is going to be."""
    try:
        # In this order: SIGKILL, which the kernel makes of each signal that kills, is pending until a flag is set.
        pending = _PENDING.findall(Path(f"/proc/{pid}/status").read_bytes())
        flags = int(stat_fields(pid)[6])
    except OSError:
        return False
    return bool(flags & flags_of_end) or any(int(signals, 16) & _SIGKILL for signals in pending)


_TAKEN: Final = re.compile(rb"^(?:SigBlk|SigIgn|SigCgt):\s*([0-9a-f]+)", re.MULTILINE)
_SIGTERM: Final = 1 << (signal.SIGTERM - 1)


def outlives_request(pid: int) -> bool | None:
    """Whether a process handles, ignores or blocks SIGTERM, which ends others at once; None if it does not exist."""
    try:
        taken = _TAKEN.findall(Path(f"/proc/{pid}/status").read_bytes())
    except OSError:
        return None
    return any(int(signals, 16) & _SIGTERM for signals in taken)


def name_of(pid: int) -> str:
    """The name of a process, of at most 15 characters; '' if it does not exist."""
    try:
        return readable(Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n"))
    except OSError:
        return ""


HEARTBEAT_LATE_NS: Final = 3_000_000_000
"""Heartbeats come once a second; when one is this late, the process's Python threads do not run."""


MAX_THREADS: Final = 1_024


def threads_of(pid: int) -> list[str]:
    """Return the numbers of a process's threads; none if it does not exist."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


_COUNTS: Final = re.compile(rb"ctxt_switches:\s*(\d+)")


class ContextSwitches:
    """Compares the context switches of a process's threads with those at the previous check."""

    def __init__(self, pid: int) -> None:
        """Check the process `pid` of this PID namespace."""
        self._pid = pid
        self._counts: dict[str, int] = {}
        self._busy = ""

    def have_grown(self) -> bool:
        """Whether a thread has run since the last call; False at the first call."""
        # The thread that waits for the GIL is probably still the same: then no other one needs to be read.
        if self._busy and (count := self._read(self._busy)) > self._counts[self._busy]:
            self._counts[self._busy] = count
            return True
        before = self._counts
        self._counts = {thread: self._read(thread) for thread in threads_of(self._pid)[:MAX_THREADS]}
        grown = [thread for thread, count in self._counts.items() if 0 <= before.get(thread, count) < count]
        self._busy = grown[0] if grown else ""
        return bool(grown)

    def forget(self) -> None:
        """Discard the counts; the next call counts as the first."""
        self._counts, self._busy = {}, ""

    def _read(self, thread: str) -> int:
        """Return a thread's number of context switches; -1 if the kernel does not report it."""
        try:
            counts = _COUNTS.findall(Path(f"/proc/{self._pid}/task/{thread}/status").read_bytes())
        except OSError:
            return -1
        return sum(map(int, counts)) if counts else -1


# --- owners -----------------------------------------------------------------------------------------------------------
# Checks whose process a pid is. A tape only claims a pid, and a reader that runs as root could reach any process.


_USERS: Final = re.compile(r"^Uid:\t(\d+)\t(\d+)\t(\d+)\t", re.MULTILINE)


def belongs_to(pid: int, user: int) -> bool:
    """Whether a process acts as a user, who may then read what /proc shows of it.

    The files in /proc of a process that has changed its user may belong to root (`man 5 proc`), which hides it.
    """
    try:
        return os.stat(f"/proc/{pid}").st_uid == user
    except OSError:
        return False


def can_signal(user: int, pid: int) -> bool:
    """Whether the kernel would let a user signal a process: it has that user's id, real or saved (see `man 2 kill`)."""
    try:
        found = _USERS.search(Path(f"/proc/{pid}/status").read_text(errors="replace"))
    except OSError:
        return False
    return found is not None and (user == 0 or user in (int(found[1]), int(found[3])))


# --- system calls -----------------------------------------------------------------------------------------------------
# The system call that a process is in, as the kernel shows it, by its name.


RUNNING: Final = "running"
# The calls in which hung ranks and their children are found; numbers differ between architectures.
_CALLS: Final = {
    "x86_64": {
        0: "read",
        1: "write",
        2: "open",
        4: "stat",
        5: "fstat",
        6: "lstat",
        7: "poll",
        17: "pread64",
        18: "pwrite64",
        19: "readv",
        23: "select",
        35: "nanosleep",
        43: "accept",
        44: "sendto",
        45: "recvfrom",
        47: "recvmsg",
        61: "wait4",
        74: "fsync",
        78: "getdents",
        202: "futex",
        217: "getdents64",
        230: "clock_nanosleep",
        232: "epoll_wait",
        247: "waitid",
        257: "openat",
        262: "newfstatat",
        270: "pselect6",
        271: "ppoll",
        281: "epoll_pwait",
        288: "accept4",
        332: "statx",
    },
    "aarch64": {
        22: "epoll_pwait",
        56: "openat",
        61: "getdents64",
        63: "read",
        64: "write",
        65: "readv",
        67: "pread64",
        68: "pwrite64",
        72: "pselect6",
        73: "ppoll",
        79: "newfstatat",
        80: "fstat",
        82: "fsync",
        95: "waitid",
        98: "futex",
        101: "nanosleep",
        115: "clock_nanosleep",
        202: "accept",
        206: "sendto",
        207: "recvfrom",
        212: "recvmsg",
        242: "accept4",
        260: "wait4",
        291: "statx",
    },
}
_ON_DESCRIPTORS: Final = frozenset(
    {
        *("read", "write", "pread64", "pwrite64", "readv", "recvfrom", "recvmsg", "sendto", "fsync", "fstat"),
        *("getdents", "getdents64"),
    }
)
"""Calls whose first argument is a file descriptor."""


@dataclass(frozen=True, slots=True)
class SystemCall:
    """A call that a thread is in.

    Attributes:
        name: Its name; `running` if the thread is in none, '' if that may not be read.
        arguments: Its arguments as the kernel writes them, which distinguish one call from the next.
        descriptor: The file descriptor that it is about; -1 for none.
    """

    name: str
    arguments: str = ""
    descriptor: int = -1


def call_of(process: Path) -> SystemCall:
    """Return the call of a process's main thread, or of a thread, given its folder in /proc."""
    try:
        words = (process / "syscall").read_text("ascii", "replace").split()
    except OSError:
        return SystemCall("")
    if not words or not words[0].lstrip("-").isdecimal():
        return SystemCall(words[0] if words else "")
    number = int(words[0])
    if number < 0:
        return SystemCall("")
    name = _CALLS.get(platform.machine(), {}).get(number, f"system call {number}")
    descriptor = int(words[1], 16) if name in _ON_DESCRIPTORS and len(words) > 1 else -1
    return SystemCall(name, " ".join(words), descriptor)
