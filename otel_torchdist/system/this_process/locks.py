"""Reads from the kernel whether a thread of this process waits for a lock. Frames do not show waits in C functions."""

from __future__ import annotations

import os
from typing import Final

_FUTEX: Final = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine)
"""Number of the system call with which threads wait for locks; None on other architectures."""
_TIMEOUT: Final = 4
"""Position of the timeout's address in /proc's text of the call; position 0 is the call's number."""
_MAX_BYTES: Final = 256


def waits_for_lock(thread: int) -> bool | None:
    """Return whether a thread waits for a lock without a timeout; None if unknown.

    A thread that waits for the GIL does so with a timeout, after which it requests the GIL.

    Args:
        thread: Native thread id.
    """
    try:
        file = os.open(f"/proc/self/task/{thread}/syscall", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        words = os.read(file, _MAX_BYTES).split()
    except OSError:
        return None
    finally:
        os.close(file)
    if _FUTEX is None or not words:
        return None
    return words[0] == _FUTEX.encode() and len(words) > _TIMEOUT and int(words[_TIMEOUT], 16) == 0
