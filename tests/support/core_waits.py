"""How long a process had to wait because others had the machine: what a promise in seconds has to allow on top."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def waited_for_a_core_s(pid: int | None = None) -> float:
    """Seconds for which the threads that a process has now were ready to run and did not.

    Args:
        pid: The process; this one by default.
    """
    waited_ns = 0
    for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            waited_ns += int((task / "schedstat").read_text().split()[1])
    return waited_ns / 1e9
