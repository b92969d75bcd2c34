"""Starts the agent from a training process: detached, with the same environment and the same modules."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

from otel_torchdist.agent.launch.detached import SHELL, has_shell, kill_session, run_detached
from otel_torchdist.agent.launch.interpreter import find_interpreter, interpreter_flags, module_path, why_no_interpreter
from otel_torchdist.environment_variables import OTEL_CONFIG_FILE, OTEL_PYTHON_TORCHDIST_ENABLED
from otel_torchdist.system.files.kept import KeptDescriptor

RUNS: Final = b"\0python\0"
"""Word that the agent's interpreter writes to stderr as soon as it runs `BOOT`."""
READY: Final = b"\0agent\0"
"""Word that it writes once the agent's modules are loaded."""
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
    except OSError: pass  # the descriptor of the listing itself
os.environ[{OTEL_PYTHON_TORCHDIST_ENABLED!r}] = "true"
from otel_torchdist.system.this_process.commands import freezing_imports
with freezing_imports():
    from otel_torchdist.agent.launch.background import main
report({READY!r})
os.dup2(1, 2)
main(sys.argv[1])
"""
"""Code that the agent's interpreter runs.

It imports nothing before it has set the path: `-c` puts the working directory first, which may contain a user's
`json.py`. It closes sockets that a library has opened without "close on exec". It reports progress on stderr, where
Python also reports errors.
"""
FORK: Final = "import os\nif os.fork(): os._exit(0)\n"
"""Replaces `import os` in `BOOT` if there is no shell to put the process into the background."""
FORK_TIMEOUT_S: Final = 30.0
"""Seconds after which an executable that has not run `BOOT` is considered not to be Python, or unable to start."""

_AUTO_INSTRUMENTATION: Final = str(Path("opentelemetry", "instrumentation", "auto_instrumentation"))
"""Directory of the `sitecustomize` of `opentelemetry-instrument`, which would instrument the agent too."""


def spawn_agent(
    directory: Path,
    on_detached: Callable[[], object],
    is_program_over: bool = False,
    waits_until_ready: bool = True,
    *,
    boot: str = BOOT,
    timeout_s: float = FORK_TIMEOUT_S,
    shell: str = SHELL,
) -> str:
    """Start an agent for a job directory; return when it has started or failed.

    Args:
        directory: The directory to read.
        on_detached: Called as soon as the agent no longer needs this process.
        is_program_over: See `run_detached`.
        waits_until_ready: Whether to wait, after `on_detached` was called, until the agent has loaded its modules.
        boot: Code that the agent's interpreter runs.
        timeout_s: See `FORK_TIMEOUT_S`.
        shell: See `run_detached`.

    Returns:
        Why the agent could not be started; '' if it has started.

    Raises:
        ChildrenAwaitedError: See `run_detached`.
    """
    python = find_interpreter()
    if not python:
        cause = why_no_interpreter()
        return f"{cause}; OTEL_PYTHON_TORCHDIST_READER=thread needs none, or run `otel-torchdist agent` yourself"
    path = [entry for entry in module_path(sys.path) if _AUTO_INSTRUMENTATION not in entry]
    try:
        with contextlib.closing(BootReport(RUNS, READY)) as report:
            code = boot if has_shell(shell) else boot.replace("import os\n", FORK)
            command = [python, *interpreter_flags(), "-c", code, str(directory), *path]
            with report.writing_end() as stderr:
                session = run_detached(command, _environment(), stderr, timeout_s, is_program_over, shell)
            on_detached()
            return report.problem(python, session, timeout_s) if waits_until_ready else ""
    except OSError as error:
        return str(error)


def _environment() -> dict[str, str]:
    environ = dict(os.environ)
    entries = environ.get("PYTHONPATH", "").split(os.pathsep)
    environ["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if _AUTO_INSTRUMENTATION not in entry)
    if not environ["PYTHONPATH"]:
        del environ["PYTHONPATH"]
    # If the executable is not Python despite its name, it starts the training, which must not start another one.
    environ[OTEL_PYTHON_TORCHDIST_ENABLED] = "false"
    if config_file := environ.get(OTEL_CONFIG_FILE, "").strip():  # may be relative to a directory that is left later
        with contextlib.suppress(OSError):
            environ[OTEL_CONFIG_FILE] = os.path.abspath(config_file)
    return environ


# --- boot report ------------------------------------------------------------------------------------------------------
# Reads the stderr of a starting agent until it has its own log.


READY_TIMEOUT_S: Final = 300.0
"""Longest time to wait for the agent's modules: they load slowly from a file system that all nodes read at once."""
KEPT_BYTES: Final = 65_536


class BootReport:
    """A pipe from the standard error of a starting process. Used by one thread."""

    def __init__(self, runs: bytes, ready: bytes) -> None:
        """Create the pipe.

        Args:
            runs: Word that the process writes as soon as it runs our code.
            ready: Word that the process writes once it has loaded all modules.

        Raises:
            OSError: No descriptors are left.
        """
        self._runs, self._ready = runs, ready
        self._reading, self._writing = map(KeptDescriptor, os.pipe2(os.O_CLOEXEC))
        self._text = b""

    @contextlib.contextmanager
    def writing_end(self) -> Generator[int, None, None]:
        """Yield the descriptor for the process to write to, and close it afterwards."""
        try:
            yield self._writing.fileno()
        finally:
            self._writing.close()

    def problem(self, program: str, session: int, timeout_s: float) -> str:
        """Wait until the process is ready; return why it failed, or '' if it is ready.

        If the training program closes our end of the pipe, the outcome is unknown, and '' is returned.

        Args:
            program: Path of the executable.
            session: Session to kill if it does not run our code within `timeout_s`: then it is another program.
            timeout_s: See `session`.
        """
        is_open = self._read_until(self._runs, timeout_s)
        if not self._reading.is_open:
            return ""
        if is_open and self._runs not in self._text:
            kill_session(session)
            return f"{program} did not start within {timeout_s:.0f} s"
        is_open = is_open and self._read_until(self._ready, READY_TIMEOUT_S)
        if is_open or not self._reading.is_open or self._ready in self._text:
            return ""
        lines = self._text.replace(self._runs, b"").decode(errors="replace").strip().splitlines()
        return f"{program} failed: {lines[-1].strip()}" if lines else f"{program} exited immediately"

    def _read_until(self, word: bytes, timeout_s: float) -> bool:
        """Read until `word` comes or time is up; return whether the other end is still open."""
        end = time.monotonic() + timeout_s
        poll = select.poll()  # `select.select` fails for descriptors beyond 1023
        poll.register(self._reading.fileno(), select.POLLIN)
        while word not in self._text:
            remaining_s = end - time.monotonic()
            if remaining_s <= 0 or not poll.poll(remaining_s * 1000):
                return True
            if not self._reading.is_open:
                return False
            more = os.read(self._reading.fileno(), 4096)
            if not more:
                return False
            self._text = (self._text + more)[-KEPT_BYTES:]
        return True

    def close(self) -> None:
        """Close our end of the pipe."""
        self._reading.close()
