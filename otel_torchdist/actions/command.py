"""Runs a user's command, with the stall in its environment and on its standard input."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from typing import Final

from otel_torchdist.actions.stalled_run import StalledRun

TIMEOUT_S: Final = 60.0
_SHOWN: Final = 500


def run_command(command: str, stall: StalledRun, timeout_s: float = TIMEOUT_S) -> str:
    """Run the command, without a shell; after `timeout_s` it is killed. Returns the outcome as text.

    Raises:
        OSError: The command cannot be started.
        ValueError: Its quotes do not match.
    """
    with tempfile.TemporaryFile() as document, tempfile.TemporaryFile() as output:
        document.write(stall.to_json().encode())
        document.seek(0)
        process = subprocess.Popen(
            shlex.split(command),
            env=os.environ | stall.to_environment(),
            stdin=document,
            stdout=output,  # a file, because its children may hold a pipe open forever
            stderr=subprocess.STDOUT,
            start_new_session=True,  # to kill it along with its children
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took longer than {timeout_s:g} s and was killed"
        output.seek(max(output.seek(0, os.SEEK_END) - _SHOWN, 0))
        shown = output.read().decode(errors="replace").strip()
    return f"exited with code {process.returncode}" + (f": {shown}" if shown else "")
