"""Files that stay open in a program that may close descriptors which it did not open.

A library that daemonizes closes all descriptors, and a double close closes another file's. The kernel gives the numbers
to the files that the program opens next. So a descriptor of ours is checked before each use, and its number is high:
programs close low ones, and the kernel hands out the lowest that is free.
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

_HIGH: Final = 4096
"""A process's descriptor table grows to its highest descriptor."""
_BELOW_LIMIT: Final = 64
_CREATES: Final = os.O_CREAT | os.O_EXCL | os.O_TRUNC


class KeptDescriptor:
    """A descriptor that other code of the program may close, and the file to which it refers."""

    def __init__(self, file: int, moves: bool = True) -> None:
        """Take ownership of an open file, and give it another descriptor.

        Args:
            file: Its descriptor. No lock may be held on the file: closing this descriptor would release the lock.
            moves: Whether to give it another descriptor.

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
        """Return the descriptor; use it at once, before other code can close it.

        Raises:
            OSError: It refers to another file by now, or to none.
        """
        if not self.is_open:
            raise OSError(errno.EBADF, "other code of the program has closed a descriptor of otel_torchdist")
        return self._descriptor

    def close(self) -> None:
        """Close the file; does nothing if it is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        close_if(descriptor, self._identity)


class KeptFile(KeptDescriptor):
    """A file that can be opened again by its path if other code has closed its descriptor.

    Attributes:
        path: Path under which the file is opened again; set it when the file is renamed.
    """

    def __init__(self, path: Path, flags: int) -> None:
        """Open a file, readable and writable for its owner alone if it is created.

        Args:
            path: Its path.
            flags: As for `os.open`. Those that create or truncate a file count only once.

        Raises:
            OSError: It cannot be opened.
        """
        super().__init__(os.open(path, flags | os.O_CLOEXEC, 0o600))
        self.path = path
        self._flags = flags & ~_CREATES | os.O_CLOEXEC | os.O_NOFOLLOW

    def reopen(self) -> None:
        """Open the file again unless it is open.

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
    """Return what distinguishes an open file from all others: its device and inode.

    Raises:
        OSError: The descriptor is not open.
    """
    facts = os.fstat(file)
    return facts.st_dev, facts.st_ino


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
    """Give an open file a high descriptor instead of its own; return the new one, or the old if none is free."""
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
    """Let the kernel enlarge this process's descriptor table on a thread.

    In a process with threads that takes 10 to 20 ms, for which the next `move_up` would wait.
    """

    def enlarge() -> None:
        with contextlib.suppress(OSError), open(os.devnull, "rb") as file:
            os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, high_descriptor()))

    with contextlib.suppress(RuntimeError):  # no thread can be started
        threading.Thread(target=enlarge, name="otel-torchdist-descriptors", daemon=True).start()


def high_descriptor() -> int:
    """Return a descriptor out of the way of programs that close low ones or pass them to `select`."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    ceiling = _HIGH if limit == resource.RLIM_INFINITY else min(limit, _HIGH)
    return max(ceiling - _BELOW_LIMIT, 3)
