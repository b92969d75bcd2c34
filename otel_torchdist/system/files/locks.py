"""Locks on tapes and on job directories.

The kernel releases a POSIX record lock when its process ends, however it ends. The lock works across PID namespaces,
and a forked child does not inherit it. But it is also released when its process closes *any* descriptor of the file, so
a process never opens its own tape a second time (see `TapeReader.of_writer`).

A job directory is locked through the directory itself, so that the lock disappears with the directory: shared while a
tape is created in it, exclusive while files are removed from it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TapeError

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""`struct flock` of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid."""


def try_lock(file: int) -> bool:
    """Take the exclusive lock on an open file; return False if another process holds it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def unlock(file: int) -> None:
    """Release the lock on an open file."""
    fcntl.lockf(file, fcntl.LOCK_UN)


def is_locked_elsewhere(file: int) -> bool:
    """Return whether another process holds a lock on an open file, without affecting the lock."""
    return _conflicting(file)[0] != fcntl.F_UNLCK


def holder_of(file: int) -> int:
    """Return the pid of another process with a lock on an open file; 0 if there is none in this PID namespace.

    The pid is from the kernel, not from the file, whose content another user may have forged.
    """
    kind, pid = _conflicting(file)
    return max(pid, 0) if kind != fcntl.F_UNLCK else 0


def _conflicting(file: int) -> tuple[int, int]:
    query = _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, query))
    return kind, pid


def is_file_locked(path: Path) -> bool:
    """Return whether another process holds a lock on a file.

    Not for a file that this process has locked: closing it again would release the lock.

    Raises:
        OSError: The file cannot be opened.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return is_locked_elsewhere(file)
    finally:
        os.close(file)


CLEAN_UP_S: Final = 5.0
"""Default time that the creator of a tape waits for a clean-up to end."""
_RETRY_S: Final = 0.002
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def shared_lock(directory: Path, deadline_s: float = CLEAN_UP_S) -> Generator[None]:
    """Lock a directory against clean-ups while a tape is created in it. Create the directory if it is missing.

    Args:
        directory: The directory.
        deadline_s: Maximum time to wait for a clean-up.

    Raises:
        TapeError: The directory cannot be created, or stays locked.
    """
    deadline = time.monotonic() + deadline_s
    try:
        while (file := _lock_shared(directory)) is None:
            if time.monotonic() > deadline:
                raise TapeError(f"{directory}: a clean-up has kept it locked for {deadline_s:g} s")
            time.sleep(_RETRY_S)
    except OSError as error:
        raise TapeError(f"{directory}: cannot be used for tapes: {error}") from error
    try:
        yield
    finally:
        _release(file)


@contextlib.contextmanager
def exclusive_lock(directory: Path) -> Generator[bool]:
    """Lock a directory against the creation of tapes.

    Yields:
        False if a tape is being created in it, or the directory is gone.
    """
    with contextlib.ExitStack() as undo:
        is_alone = False
        with contextlib.suppress(OSError):
            file = os.open(directory, _FLAGS | os.O_NOFOLLOW)
            undo.callback(_release, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_alone = True
        yield is_alone


def _lock_shared(directory: Path) -> int | None:
    """Open and lock a directory; None if a clean-up is running in it, or has just removed it."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(0o700)
    with contextlib.ExitStack() as undo, contextlib.suppress(BlockingIOError, FileNotFoundError):
        file = os.open(directory, _FLAGS)
        undo.callback(_release, file)
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), os.stat(directory)):
            undo.pop_all()
            return file
    return None


def _release(file: int) -> None:
    # Closing is not enough: a child forked meanwhile shares the lock while it lives.
    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)
