"""Takes the stacks of a live process with py-spy, where that is installed. It reads the memory and stops nothing.

py-spy is a program of its own; it needs the right to read another process's memory: root, `CAP_SYS_PTRACE`, or the
same user where `kernel.yama.ptrace_scope` is 0.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from otel_torchdist.evidence.model import Statement
from otel_torchdist.evidence.texts import py_spy
from otel_torchdist.naming import readable

TIMEOUT_S: Final = 10.0
TRIES: Final = 3
"""A running process may change its stack while it is read."""
MAX_REASON: Final = 200


def program() -> str | None:
    """Return the path of py-spy; None if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if os.access(beside, os.X_OK) else None)


def dump(path: str, pid: int) -> tuple[Statement | None, str]:
    """Take the stacks of a process.

    Args:
        path: Of py-spy.
        pid: The process.

    Returns:
        Its stacks; or None and the reason.
    """
    reason = ""
    for _ in range(TRIES):
        content, reason = _output([path, "dump", "--json", "--nonblocking", "--pid", str(pid)])
        found = py_spy.statements_of_json(content, f"py-spy of process {pid}") if content else []
        if found:
            return found[0], ""
        if "denied" in reason.lower() or "permitted" in reason.lower():
            break
    return None, reason or "it returned no stacks"


def _output(command: list[str]) -> tuple[bytes, str]:
    try:
        # At Ctrl-C, too, this kills it before it goes on.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return b"", f"it did not end within {TIMEOUT_S:g} s"
    except OSError as error:
        return b"", f"it cannot be started: {error.strerror}"
    if done.returncode == 0:
        return done.stdout, ""
    said = done.stderr[:MAX_REASON].decode("utf-8", "replace").strip().partition("\n")[0]
    return b"", readable(said, MAX_REASON)
