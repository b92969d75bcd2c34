"""Starts the agent from a training process: detached, with the same environment and the same modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

BOOT: Final = """\
import os, sys
if os.fork(): os._exit(0)
import json
sys.path[:] = json.loads(sys.argv[1])
from otel_torchdist.agent.background import main
main(sys.argv[2])
"""
"""The first process ends at once: the agent is nobody's child, so no `os.wait()` of the user's finds it."""
FORK_TIMEOUT_S: Final = 30.0

_AUTO_INSTRUMENTATION: Final = str(Path("opentelemetry", "instrumentation", "auto_instrumentation"))
"""Where `opentelemetry-instrument` has a `sitecustomize`, which would instrument the agent as well."""


def spawn_agent(directory: Path) -> str:
    """Start an agent for a job directory.

    Returns:
        Why it could not be started; '' when it could.
    """
    if not sys.executable:
        return "it is not known which Python this is"
    command = [sys.executable, "-c", BOOT, json.dumps(_module_path(sys.path)), str(directory)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
        )
        process.wait(FORK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"{sys.executable} ended with exit code {process.returncode}" if process.returncode else ""


def _module_path(path: list[str]) -> list[str]:
    """Where modules are found here, as absolute paths: the agent must not find others in their place."""
    return [os.path.abspath(entry) for entry in path if _AUTO_INSTRUMENTATION not in entry]


def _environment() -> dict[str, str]:
    environ = dict(os.environ)
    entries = environ.get("PYTHONPATH", "").split(os.pathsep)
    environ["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if _AUTO_INSTRUMENTATION not in entry)
    if not environ["PYTHONPATH"]:
        del environ["PYTHONPATH"]
    return environ
