"""Pidfds: descriptors that refer to one thread or process, and never to a later one with the same pid.

The functions of `os` and `signal` are missing in portable builds of Python: their kernel headers predate Linux 5.3.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from typing import Final

# The same on every architecture that runs torch.
_PIDFD_SEND_SIGNAL: Final = 424
_PIDFD_OPEN: Final = 434
PIDFD_THREAD: Final = os.O_EXCL
"""Flag of `pidfd_open` to refer to a thread, which then receives the signals. Since Linux 6.9."""

# `struct pidfd_info` of Linux 6.15: mask, cgroup, pid, tgid, ppid, eight user and group ids, exit_code.
_INFO: Final = struct.Struct("=QQ11Ii")
_GET_INFO: Final = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""`PIDFD_GET_INFO`, as `_IOWR` encodes it on x86 and ARM."""
_INFO_EXIT: Final = 1 << 3

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def open_thread(pid: int, thread: int, flag: int = PIDFD_THREAD) -> tuple[int, int]:
    """Open a pidfd of one thread, else of its process; return it and the thread that will receive signals.

    Before Linux 6.9 that is the main thread, unless another thread unblocks its signals at that very moment.

    Args:
        pid: Process id.
        thread: Native thread id.
        flag: Flag of `pidfd_open` for a thread; another one in tests.

    Raises:
        OSError: There is no such thread, or the kernel has no pidfds.
    """
    try:
        return _open(thread, flag), thread
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return _open(pid, 0), pid


def open_process(pid: int) -> int:
    """Open a pidfd of a process. It becomes readable when the last thread of the process has ended.

    Raises:
        OSError: There is no such process, the kernel has no pidfds, or there are too many open files.
    """
    return _open(pid, 0)


def wait_status(pidfd: int) -> int | None:
    """Return the wait status of a process that its parent has reaped; None before that, or before Linux 6.15."""
    info = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(info)
    return status if mask & _INFO_EXIT else None


def send(pidfd: int, signal: int) -> None:
    """Send a signal.

    Raises:
        OSError: The thread or process is gone, or signaling it is not permitted.
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
