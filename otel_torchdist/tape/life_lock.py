"""The lock on a tape that shows other processes that its writer lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from pathlib import Path

from otel_torchdist import guard
from otel_torchdist.files.kept import KeptFile


class LifeLock:
    """The open file of a tape, and the lock on it.

    The kernel releases the lock when the process closes any descriptor of the file, as a program does that closes all
    descriptors. So the lock is taken again once a second.
    """

    def __init__(self, created: Path, path: Path) -> None:
        """Create the file, readable and writable for its owner alone.

        Args:
            created: Path of the file until it is complete.
            path: Its path from then on.

        Raises:
            OSError: It exists, or cannot be created.
        """
        self._file = KeptFile(created, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._file.path = path
        # Until the tape is dropped: a clean-up of this process takes files that are open for in use.
        weakref.finalize(self, self._file.close).atexit = False
        self._closing = threading.Lock()
        self._is_closed = False

    def fileno(self) -> int:
        """Return the descriptor.

        Raises:
            OSError: The program has closed it.
        """
        return self._file.fileno()

    def take(self) -> None:
        """Take the lock.

        Raises:
            OSError: Another process holds it, or the program has closed the file.
        """
        fcntl.lockf(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def hold(self) -> None:
        """Take the lock again if the program has released it, unless it has removed the file."""
        with self._closing:
            if self._is_closed:
                return
            try:
                self._file.reopen()
                self.take()
            except OSError as error:
                guard.pass_on(error)

    def close(self) -> None:
        """Release the lock, and let other processes remove the file."""
        with self._closing:
            self._is_closed = True
            with contextlib.suppress(OSError):  # closed by the program, which has released the lock
                fcntl.lockf(self._file.fileno(), fcntl.LOCK_UN)
