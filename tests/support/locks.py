"""Locks that another process holds."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_HOLDER = """
import ctypes, fcntl, os, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as a process that this user has started
print("locked", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held_elsewhere(path: Path, user: int | None = None) -> Iterator[None]:
    """Have another process lock a file, one of another user if that is given, and kill that process at the end."""
    command = [sys.executable, "-c", _HOLDER, str(path), *([] if user is None else [str(user)])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            yield
        finally:
            holder.kill()
