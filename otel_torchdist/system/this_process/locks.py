"""Whether a thread of this process waits for a lock, as the kernel shows it: no frame does where a line calls C."""

from __future__ import annotations

import os
from typing import Final

_FUTEX: Final = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine)
"""The number of the call by which threads wait for locks; None where it is not known here."""
_LIMIT: Final = 4
"""Where the call's line has the address of its limit, after its number."""
_MAX_BYTES: Final = 256


def waits_for_lock(thread: int) -> bool | None:
    """Whether a thread, by its native id, waits for a lock without a limit; None if that may not be read.

    Who wants to run Python waits for the GIL with a limit, and then asks for it.
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
    return words[0] == _FUTEX.encode() and len(words) > _LIMIT and int(words[_LIMIT], 16) == 0
