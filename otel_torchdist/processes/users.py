"""Checks whose process a pid is. A tape only claims a pid, and a reader that runs as root could reach any process."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_USERS: Final = re.compile(r"^Uid:\t(\d+)\t(\d+)\t(\d+)\t", re.MULTILINE)


def belongs_to(pid: int, user: int) -> bool:
    """Whether a process acts as a user, who may then read what /proc shows of it.

    The files in /proc of a process that has changed its user may belong to root (`man 5 proc`), which hides it.
    """
    try:
        return os.stat(f"/proc/{pid}").st_uid == user
    except OSError:
        return False


def can_signal(user: int, pid: int) -> bool:
    """Whether the kernel would let a user signal a process: it has that user's id, real or saved (see `man 2 kill`)."""
    try:
        found = _USERS.search(Path(f"/proc/{pid}/status").read_text(errors="replace"))
    except OSError:
        return False
    return found is not None and (user == 0 or user in (int(found[1]), int(found[3])))
