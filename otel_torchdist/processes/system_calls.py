"""The system call that a process is in, as the kernel shows it, by its name."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
