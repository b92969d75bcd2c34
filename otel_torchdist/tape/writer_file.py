"""The file of a tape that this process writes: its mapping, and the lock that marks its writer as alive."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Final

from otel_torchdist import guard
from otel_torchdist.system.files.kept import KeptFile

# `mmap.mmap` duplicates the descriptor and closes the duplicate at the end. That close releases all locks of this
# process on the file, or closes another file if the program has reused the descriptor.

_MAP_FIXED: Final = 0x10
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def map_shared(file: int, size: int) -> mmap.mmap:
    """Map the first `size` bytes of an open file for reading and writing. The caller may close the file.

    Raises:
        OSError: The file cannot be mapped.
    """
    if sys.version_info >= (3, 13):
        return mmap.mmap(file, size, trackfd=False)
    memory = mmap.mmap(-1, size)  # reserves the addresses; the next call maps the file over them
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    mapped = _mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, file, 0)
    if mapped == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return memory


def _declared() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    return function


_mmap: Final = _declared()


class LifeLock:
    """The open file of a tape, and the lock on it.

    The kernel releases the lock when the process closes any descriptor of the file, and some programs close all
    descriptors. So the lock is retaken once a second.
    """

    def __init__(self, created: Path, path: Path) -> None:
        """Create the file, readable and writable only by its owner.

        Args:
            created: Path of the incomplete file.
            path: Path of the complete file.

        Raises:
            OSError: The file exists, or cannot be created.
        """
        self._file = KeptFile(created, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._file.path = path
        # Keep the file open until the tape is dropped, because this process's own clean-up of tapes spares open files.
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

    def retake(self) -> None:
        """Retake the lock if the program has released it. Does nothing if the program has removed the file."""
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
            with contextlib.suppress(OSError):  # the program has closed the file, which released the lock
                fcntl.lockf(self._file.fileno(), fcntl.LOCK_UN)
