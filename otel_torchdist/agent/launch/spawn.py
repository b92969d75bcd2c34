"""Starts the agent from a training process: detached, with the same environment and the same modules."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from otel_torchdist.agent.launch.boot_report import BootReport
from otel_torchdist.agent.launch.detached import SHELL, has_shell, run_detached
from otel_torchdist.agent.launch.interpreter import find_interpreter, interpreter_flags, module_path, why_none
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_ENABLED

RUNS: Final = b"\0python\0"
READY: Final = b"\0agent\0"
BOOT: Final = f"""\
import sys
sys.path[:] = sys.argv[2:]
import os
def report(word):
    try: os.write(2, word)
    except OSError: pass  # the rank has ended
report({RUNS!r})
for fd in map(int, os.listdir("/proc/self/fd")):
    try: fd > 2 and os.get_inheritable(fd) and os.close(fd)
    except OSError: pass  # it was that of the folder
os.environ[{OTEL_PYTHON_TORCHDIST_ENABLED!r}] = "true"
from otel_torchdist.this_process.garbage import keeping_what_is_imported
with keeping_what_is_imported():
    from otel_torchdist.agent.launch.background import main
report({READY!r})
os.dup2(1, 2)
main(sys.argv[1])
"""
"""Nothing may be imported before the path is set: `-c` puts the working directory first, which may contain a user's
`json.py`. Sockets that some library has opened without "close on exec" are closed here. Progress is reported on stderr,
where Python also reports errors."""
FORK: Final = "import os\nif os.fork(): os._exit(0)\n"
"""Replaces `import os` in `BOOT` if there is no shell that could put the process into the background."""
FORK_TIMEOUT_S: Final = 30.0
"""An executable that has not run our code by then is not Python, or cannot start."""

_AUTO_INSTRUMENTATION: Final = str(Path("opentelemetry", "instrumentation", "auto_instrumentation"))
"""Where `opentelemetry-instrument` has a `sitecustomize` that would instrument the agent as well."""


def spawn_agent(
    directory: Path,
    detached: Callable[[], object],
    last: bool = False,
    follows: bool = True,
    *,
    boot: str = BOOT,
    timeout_s: float = FORK_TIMEOUT_S,
    shell: str = SHELL,
) -> str:
    """Start an agent for a job directory; returns when it has started or failed.

    Args:
        directory: The directory to read.
        detached: Called as soon as the agent no longer needs this process.
        last: Whether it must start now, because the program has ended.
        follows: Whether to wait for its first report once it no longer needs this process.
        boot: The code that the agent runs.
        timeout_s: An executable that has not run our code by then is given up.
        shell: See `run_detached`.

    Returns:
        Why it could not be started; '' if it was.

    Raises:
        ChildrenAwaitedError: Starting it now would disturb the program.
    """
    python = find_interpreter()
    if not python:
        return f"{why_none()}; OTEL_PYTHON_TORCHDIST_READER=thread needs none, or run `otel-torchdist agent` yourself"
    path = [entry for entry in module_path(sys.path) if _AUTO_INSTRUMENTATION not in entry]
    try:
        with contextlib.closing(BootReport(RUNS, READY)) as report:
            code = boot if has_shell(shell) else boot.replace("import os\n", FORK)
            command = [python, *interpreter_flags(), "-c", code, str(directory), *path]
            with report.writing_end() as stderr:
                session = run_detached(command, _environment(), stderr, timeout_s, last, shell)
            detached()
            return report.problem(python, session, timeout_s) if follows else ""
    except OSError as error:
        return str(error)


def _environment() -> dict[str, str]:
    environ = dict(os.environ)
    entries = environ.get("PYTHONPATH", "").split(os.pathsep)
    environ["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if _AUTO_INSTRUMENTATION not in entry)
    if not environ["PYTHONPATH"]:
        del environ["PYTHONPATH"]
    # If this is not Python despite its name, it is the training that starts, and it must not start another one.
    environ[OTEL_PYTHON_TORCHDIST_ENABLED] = "false"
    return environ
