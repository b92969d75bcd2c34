"""Signals through a pidfd, which stands for one thread or process and never for the next one that gets its number.

Python's own functions are missing where it was built with kernel headers from before Linux 5.3, as builds that are to
run everywhere are.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

# The same on every architecture that runs torch.
_PIDFD_SEND_SIGNAL: Final = 424
_PIDFD_OPEN: Final = 434
_PIDFD_THREAD: Final = os.O_EXCL
"""Take a thread; a signal then goes to that thread. Since Linux 6.9."""

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def open_thread(pid: int, thread: int) -> tuple[int, int]:
    """A pidfd of one thread of a process, else of the process, and the thread to which a signal goes.

    Before Linux 6.9 that is the main thread, unless another one unblocks its signals at that very moment.

    Raises:
        OSError: There is no such thread, or the kernel has no pidfd.
    """
    try:
        return _open(thread, _PIDFD_THREAD), thread
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return _open(pid, 0), pid


def send(pidfd: int, signal: int) -> None:
    """Send a signal.

    Raises:
        OSError: The thread or process is gone, or we may not.
    """
    _call(_PIDFD_SEND_SIGNAL, pidfd, signal, 0, 0)


def _open(pid: int, flags: int) -> int:
    return _call(_PIDFD_OPEN, pid, flags)


def _call(*arguments: int) -> int:
    result: int = _libc.syscall(*map(ctypes.c_long, arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
