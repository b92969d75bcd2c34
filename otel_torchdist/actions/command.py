"""Runs a command of the user's, with the stall in its environment and on its standard input."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from typing import Final

from otel_torchdist.actions.stalled_run import StalledRun

TIMEOUT_S: Final = 60.0
_SHOWN: Final = 500


def run_command(command: str, stall: StalledRun) -> str:
    """Run it, without a shell; returns what became of it.

    Raises:
        OSError: It cannot be started.
        ValueError: Its quotes do not match.
    """
    process = subprocess.Popen(
        shlex.split(command),
        env=os.environ | stall.to_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # to end it with all that it has started
        text=True,
        errors="replace",
    )
    try:
        output, _ = process.communicate(stall.to_json(), TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"took longer than {TIMEOUT_S:g} s and was ended"
    said = f": {output.strip()[-_SHOWN:]}" if output.strip() else ""
    return f"ended with exit code {process.returncode}{said}"
