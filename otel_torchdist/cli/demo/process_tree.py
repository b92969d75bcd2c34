"""A child process with all its descendants, none of which outlives us."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_torchdist.tape.identity import process_state

_PR_SET_CHILD_SUBREAPER: Final = 36
_GRACE_S: Final = 3.0
_POLL_S: Final = 0.02


class ProcessTree:
    """A command in its own session, so that Ctrl-C in the terminal is ours to handle.

    torchrun also starts each rank in its own session, so there is no process group to kill. But this process is the
    subreaper of all its descendants: one whose parent dies becomes our child, wherever it is.

    Attributes:
        output: The read end of the command's stdout, non-blocking.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], stderr: Path) -> None:
        """Start the command; its stderr goes to a file."""
        self._others = _children()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with stderr.open("wb") as log:
            self._root = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._root.stdout is not None
        self.output = self._root.stdout.fileno()
        os.set_blocking(self.output, False)

    @property
    def exit_code(self) -> int | None:
        """The command's exit code; None while it runs."""
        return self._root.poll()

    @property
    def has_orphans(self) -> bool:
        """Whether a descendant is still running whose parent has ended."""
        states = map(process_state, _children() - self._others - {self._root.pid})
        return any(state is not None and state[0] != "Z" for state in states)

    def ask_to_end(self) -> None:
        """Ask the command to end; it also ends what it has started and still knows."""
        if self._root.poll() is None:
            self._root.terminate()

    def stop(self) -> None:
        """End all processes: cleanly within three seconds, by force after that."""
        if self._root.poll() is None:
            self.ask_to_end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._root.wait(_GRACE_S)
        self._kill_all()
        if self._root.stdout is not None:
            self._root.stdout.close()

    def _kill_all(self) -> None:
        """Kill all remaining processes; the children of a killed process become ours and are killed next."""
        deadline = time.monotonic() + _GRACE_S
        while (left := _children() - self._others) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left - {self._root.pid}:  # Popen waits for its own
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            self._root.poll()
            time.sleep(_POLL_S)


def _children() -> frozenset[int]:
    """Return the processes whose parent we are."""
    ours = str(os.getpid())
    return frozenset(int(name) for name in os.listdir("/proc") if name.isdecimal() and _parent_of(name) == ours)


def _parent_of(pid: str) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The program's name is in parentheses and may itself contain some.
    return stat[stat.rindex(")") + 2 :].split()[1]
