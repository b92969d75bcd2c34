"""How long a process had to wait for a core: the tolerance to add to bounds in seconds."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def waited_for_a_core_s(pid: int | None = None) -> float:
    """Seconds for which the current threads of a process were runnable but did not run.

    Args:
        pid: The process; this one by default.
    """
    waited_ns = 0
    for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            waited_ns += int((task / "schedstat").read_text().split()[1])
    return waited_ns / 1e9
