"""Alive means: the writer's POSIX lock on its tape is held.

A POSIX record lock is dropped by the kernel when its process ends, however it ends; it works across PID
namespaces, and a forked child does not inherit it. The price: it is also dropped when its process closes *any*
descriptor of the file, so a process never opens its own tape a second time (see `TapeReader.of_writer`).
"""

from __future__ import annotations

import errno
import fcntl
import struct
from typing import Final

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""`struct flock` of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid."""


def try_lock(file: int) -> bool:
    """Take the exclusive lock on an open file; False when another process holds it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def unlock(file: int) -> None:
    """Give up the lock on an open file."""
    fcntl.lockf(file, fcntl.LOCK_UN)


def is_locked_elsewhere(file: int) -> bool:
    """Whether another process holds a lock on an open file; asks without touching the lock."""
    query = _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0)
    lock_type: int = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, query))[0]
    return lock_type != fcntl.F_UNLCK
