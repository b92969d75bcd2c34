"""Files that stay open in a program that may close descriptors it did not open.

A library that daemonizes closes all descriptors, and a double close may close another file's. The kernel then reuses
the number for the next file that the program opens. So our descriptors are checked before each use. Their numbers are
high, because programs close low ones, and the kernel assigns the lowest free number.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import threading
from pathlib import Path
from typing import Final

from otel_torchdist import guard

_MAX_DESCRIPTOR: Final = 4096
"""Upper bound for our descriptors: a process's descriptor table is as large as its highest descriptor."""
_FREE_BELOW_LIMIT: Final = 64
"""Descriptors between ours and the limit of the process, for our later files."""
_CREATION_FLAGS: Final = os.O_CREAT | os.O_EXCL | os.O_TRUNC


class KeptDescriptor:
    """An open file whose descriptor other code of the program may close."""

    def __init__(self, file: int, moves: bool = True) -> None:
        """Take ownership of an open file.

        Args:
            file: Its descriptor. No lock may be held on the file: moving the descriptor would release the lock.
            moves: Whether to move the file to a high descriptor.

        Raises:
            OSError: The descriptor is not open.
        """
        self._identity = identity_of(file)
        self._descriptor = move_up(file) if moves else file

    @property
    def is_open(self) -> bool:
        """Whether the descriptor still refers to the file."""
        return self._descriptor >= 0 and refers_to(self._descriptor, self._identity)

    def fileno(self) -> int:
        """Return the descriptor. Use it immediately, before other code can close it.

        Raises:
            OSError: Other code has closed the descriptor.
        """
        if not self.is_open:
            raise OSError(errno.EBADF, "other code of the program has closed a descriptor of otel_torchdist")
        return self._descriptor

    def close(self) -> None:
        """Close the file; do nothing if it is closed already."""
        descriptor, self._descriptor = self._descriptor, -1
        close_if(descriptor, self._identity)


class KeptFile(KeptDescriptor):
    """An open file that can be reopened by its path after other code has closed its descriptor.

    Attributes:
        path: Path for reopening; set it when the file is renamed.
    """

    def __init__(self, path: Path, flags: int) -> None:
        """Open a file. A new file is readable and writable only for its owner.

        Args:
            path: Path of the file.
            flags: Flags of `os.open`. Flags that create or truncate are not used again for reopening.

        Raises:
            OSError: It cannot be opened.
        """
        super().__init__(os.open(path, flags | os.O_CLOEXEC, 0o600))
        self.path = path
        self._flags = flags & ~_CREATION_FLAGS | os.O_CLOEXEC | os.O_NOFOLLOW

    def reopen(self) -> None:
        """Reopen the file if it is not open.

        Raises:
            OSError: It cannot be opened, or another file has its path.
        """
        if self.is_open:
            return
        file = os.open(self.path, self._flags)
        if not refers_to(file, self._identity):
            os.close(file)
            raise OSError(errno.ESTALE, "another file has its path", str(self.path))
        self._descriptor = move_up(file)


def identity_of(file: int) -> tuple[int, int]:
    """Return the device and inode of an open file, which identify it.

    Raises:
        OSError: The descriptor is not open.
    """
    info = os.fstat(file)
    return info.st_dev, info.st_ino


def refers_to(file: int, identity: tuple[int, int]) -> bool:
    """Return whether a descriptor refers to the file with this `identity_of`."""
    try:
        return identity_of(file) == identity
    except OSError as error:
        guard.pass_on(error)  # a TimeoutError of the program is an OSError, too
    return False


def close_if(file: int, identity: tuple[int, int]) -> None:
    """Close a descriptor if it refers to the file with this `identity_of`."""
    if file >= 0 and refers_to(file, identity):
        os.close(file)


def move_up(file: int) -> int:
    """Move an open file to a high descriptor; return the new descriptor, or the old one if none is free."""
    try:
        moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, high_descriptor())
    except OSError as error:
        guard.pass_on(error)
        return file
    os.close(file)
    return moved


def open_epoll() -> select.epoll:
    """Create an epoll object with a high descriptor.

    Raises:
        OSError: No descriptors are left.
    """
    with select.epoll() as low:
        return select.epoll.fromfd(move_up(os.dup(low.fileno())))


def make_room_for_descriptors() -> None:
    """Enlarge this process's descriptor table, on a thread.

    In a process with threads this takes the kernel 10 to 20 ms, which would delay the first `move_up`.
    """

    def enlarge() -> None:
        with contextlib.suppress(OSError), open(os.devnull, "rb") as file:
            os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, high_descriptor()))

    with contextlib.suppress(RuntimeError):  # no thread can be started
        threading.Thread(target=enlarge, name="otel-torchdist-descriptors", daemon=True).start()


def high_descriptor() -> int:
    """Return a high descriptor: programs close low descriptors, or need them for `select`."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    ceiling = _MAX_DESCRIPTOR if limit == resource.RLIM_INFINITY else min(limit, _MAX_DESCRIPTOR)
    return max(ceiling - _FREE_BELOW_LIMIT, 3)
