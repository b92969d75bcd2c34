"""Reads from the kernel whether a rank's process is running, stopped, held by a debugger, or suspended.

A Python thread that waits for the GIL wakes up every 5 ms to request it (`sys.getswitchinterval`). So the context
switches of the heartbeat thread show that the process runs, even if the thread cannot beat. They stop in a process that
is stopped, frozen by its cgroup or paused with its container. The files of the cgroup need not be accessible.
"""

from __future__ import annotations

import os
import platform
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.model.rank_state.lives import SLEEPS_UNINTERRUPTIBLY, STOPPED_STATES, Stopped
from otel_torchdist.model.text import readable
from otel_torchdist.tape.identity import TapeIdentity, process_state, shares_pids, stat_fields

SILENT_NS: Final = 1_200_000_000
"""Minimum age of a heartbeat before the state of the process is checked."""


class ProcessState:
    """The run state of a tape's writer.

    Attributes:
        ran_ns: Last time at which it ran without a heartbeat; 0 for never.
    """

    def __init__(self, identity: TapeIdentity) -> None:
        """Check the writer of a tape, unless it is in another PID namespace or from another boot."""
        self._identity = identity
        self._is_in_reach = shares_pids(identity)
        self._stopped: Stopped | None = None
        self._switches = ContextSwitches(identity.pid)
        self.ran_ns = 0

    def check(self, now_ns: int, heartbeat_ns: int) -> Stopped | None:
        """Return why the process does not run; None if it runs, or if that cannot be determined.

        Args:
            now_ns: Monotonic time.
            heartbeat_ns: Monotonic time of its last heartbeat.
        """
        state = self._state_letter()
        is_silent = now_ns - heartbeat_ns >= SILENT_NS
        # A stopped process that is killed runs again, only to end; with much memory that takes long.
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

    def _state_letter(self) -> str:
        state = process_state(self._identity.pid) if self._is_in_reach else None
        return state[0] if state is not None and state[1] == self._identity.pid_start_ticks else ""


_PENDING: Final = re.compile(rb"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)", re.MULTILINE)
_SIGKILL: Final = 1 << (signal.SIGKILL - 1)
_EXITING: Final = 0x0004
_KILLED: Final = 0x0400
"""PF_EXITING and PF_SIGNALED of the kernel's `sched.h`: the process is freeing its memory, or is about to."""


def _is_ending(pid: int) -> bool:
    """Return whether a process that still exists has been killed, or is exiting."""
    return _shows_end(pid, _EXITING | _KILLED)


def is_killed(pid: int) -> bool:
    """Return whether a signal has killed a process that still exists."""
    return _shows_end(pid, _KILLED)


def _shows_end(pid: int, flags_of_end: int) -> bool:
    """Return whether one of these flags is set, or is about to be."""
    try:
        # In this order: the kernel turns every fatal signal into SIGKILL, which is pending until a flag is set.
        pending = _PENDING.findall(Path(f"/proc/{pid}/status").read_bytes())
        flags = int(stat_fields(pid)[6])
    except OSError:
        return False
    return bool(flags & flags_of_end) or any(int(signals, 16) & _SIGKILL for signals in pending)


_NOT_FATAL: Final = re.compile(rb"^(?:SigBlk|SigIgn|SigCgt):\s*([0-9a-f]+)", re.MULTILINE)
_SIGTERM: Final = 1 << (signal.SIGTERM - 1)


def survives_sigterm(pid: int) -> bool | None:
    """Return whether a process handles, ignores or blocks SIGTERM; None if the process does not exist."""
    try:
        not_fatal = _NOT_FATAL.findall(Path(f"/proc/{pid}/status").read_bytes())
    except OSError:
        return None
    return any(int(signals, 16) & _SIGTERM for signals in not_fatal)


def name_of(pid: int) -> str:
    """Return the name of a process, at most 15 characters; '' if it does not exist."""
    try:
        return readable(Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n"))
    except OSError:
        return ""


HEARTBEAT_LATE_NS: Final = 3_000_000_000
"""Minimum age of a heartbeat (one a second) before the process's Python threads are considered blocked."""


MAX_THREADS: Final = 1_024


def threads_of(pid: int) -> list[str]:
    """Return the native thread ids of a process; an empty list if it does not exist."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


_COUNTS: Final = re.compile(rb"ctxt_switches:\s*(\d+)")


class ContextSwitches:
    """The context switches of a process's threads, compared with the previous check."""

    def __init__(self, pid: int) -> None:
        """Check the process `pid` of this PID namespace."""
        self._pid = pid
        self._counts: dict[str, int] = {}
        self._busy_thread = ""

    def have_grown(self) -> bool:
        """Return whether a thread has run since the last call; False at the first call."""
        # The thread that waited for the GIL last time probably still does: then no other thread has to be read.
        if self._busy_thread and (count := self._read(self._busy_thread)) > self._counts[self._busy_thread]:
            self._counts[self._busy_thread] = count
            return True
        before = self._counts
        self._counts = {thread: self._read(thread) for thread in threads_of(self._pid)[:MAX_THREADS]}
        grown = [thread for thread, count in self._counts.items() if 0 <= before.get(thread, count) < count]
        self._busy_thread = grown[0] if grown else ""
        return bool(grown)

    def forget(self) -> None:
        """Discard the counts, so that the next call is a first call."""
        self._counts, self._busy_thread = {}, ""

    def _read(self, thread: str) -> int:
        """Return a thread's number of context switches; -1 if the kernel does not report it."""
        try:
            counts = _COUNTS.findall(Path(f"/proc/{self._pid}/task/{thread}/status").read_bytes())
        except OSError:
            return -1
        return sum(map(int, counts)) if counts else -1


# --- owners -----------------------------------------------------------------------------------------------------------
# Checks the owner of a process. A pid on a tape is only a claim, and a reader as root could reach any process.


_USERS: Final = re.compile(r"^Uid:\t(\d+)\t(\d+)\t(\d+)\t", re.MULTILINE)


def belongs_to(pid: int, user: int) -> bool:
    """Return whether a process acts as a user, who may then read its files in /proc.

    If a process has changed its user, its files in /proc may belong to root (see `man 5 proc`): then this is False.
    """
    try:
        return os.stat(f"/proc/{pid}").st_uid == user
    except OSError:
        return False


def can_signal(user: int, pid: int) -> bool:
    """Return whether the kernel lets a user signal a process: its real or saved user id is theirs (`man 2 kill`)."""
    try:
        match = _USERS.search(Path(f"/proc/{pid}/status").read_text(errors="replace"))
    except OSError:
        return False
    return match is not None and (user == 0 or user in (int(match[1]), int(match[3])))


# --- system calls -----------------------------------------------------------------------------------------------------
# The system call that a thread is in, as the kernel shows it.


RUNNING: Final = "running"
# The calls in which hung ranks and their children block; numbers differ between architectures.
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
    """The system call that a thread is in.

    Attributes:
        name: Name of the call; `running` if the thread is in none, '' if unknown.
        arguments: Number and arguments as the kernel writes them, to distinguish one call from the next.
        descriptor: File descriptor that the call is about; -1 for none.
    """

    name: str
    arguments: str = ""
    descriptor: int = -1


def call_of(process: Path) -> SystemCall:
    """Return the system call of a thread, given its folder in /proc; a process's folder stands for its main thread."""
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
