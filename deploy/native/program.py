"""Runs a server as a child process: starts it, waits until it is up, and stops it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from deploy.native.http_json import answers

START_S: Final = 60.0
STOP_S: Final = 15.0
LAST_LINES: Final = 12
_PR_SET_PDEATHSIG: Final = 1


class ProgramError(Exception):
    """A server does not come up; the message contains the end of its output."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run.

    Attributes:
        name: Shown in messages, and used as the name of the log file.
        command: Command line.
        home: Working directory, and directory of the log.
        ready: URL that answers with 200 when the program is up.
        environment: Variables to add to this process's environment.
    """

    name: str
    command: tuple[str | Path, ...]
    home: Path
    ready: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def log(self) -> Path:
        """File for its output."""
        return self.home / f"{self.name}.log"


class Running:
    """A context manager that runs a program: it is up after `__enter__` and gone after `__exit__`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Running:
        """Start the program.

        Raises:
            ProgramError: It has ended, or is not up in a minute.
        """
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the program and wait until it is up.

        Raises:
            ProgramError: It has ended, or is not up in a minute.
        """
        self.program.home.mkdir(parents=True, exist_ok=True)
        with self.program.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.program.command,
                cwd=self.program.home,
                env=os.environ | dict(self.program.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.stop()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal `how`, and SIGKILL if the program has not ended within `STOP_S`. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ProgramError(self._complaint(f"ended with exit code {process.returncode}"))
            if answers(self.program.ready):
                return
            time.sleep(0.05)
        raise ProgramError(self._complaint(f"is not up after {START_S:g} s"))

    def _complaint(self, problem: str) -> str:
        lines = self.program.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join((f"{self.program.name} {problem}; the end of {self.program.log}:", *lines))


def _end_with_parent() -> None:
    """Have the kernel end this child when its parent ends, even if the parent is killed. Runs between fork and exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
