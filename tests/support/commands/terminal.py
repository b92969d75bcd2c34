"""A pseudo-terminal with a command."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

from tests.support.commands.running import SCRIPT, environment

_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal of 100 columns.

    Attributes:
        process: The command.
        shown: Everything written to the terminal, with escape sequences.
    """

    def __init__(
        self,
        base: Path,
        *arguments: str | Path,
        environ: dict[str, str] | None = None,
        is_controlling: bool = True,
        output: Path | None = None,
    ) -> None:
        """Start the command in it.

        Args:
            base: Its base directory for tapes.
            *arguments: Arguments of `otel-torchdist`.
            environ: Additions to the environment.
            is_controlling: Whether its keys and its end send signals to the command.
            output: A file for the command's standard output; None for the terminal.
        """
        self._master, slave = pty.openpty()
        self._output = select.poll()  # `select.select` fails for descriptors beyond 1023
        self._output.register(self._master, select.POLLIN)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 40, 100, 0, 0))

        def take_terminal() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell starts background commands without it
            os.setsid()
            if is_controlling:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        stdout = slave if output is None else os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.process = subprocess.Popen(
            [str(SCRIPT), *map(str, arguments)],
            env={**environment(base), "TERM": "xterm-256color", **(environ or {})},
            stdin=slave,
            stdout=stdout,
            stderr=slave,
            preexec_fn=take_terminal,
        )
        for descriptor in {slave, stdout}:
            os.close(descriptor)
        self.shown = ""

    @property
    def text(self) -> str:
        """Everything written to the terminal, without escape sequences."""
        return _SEQUENCE.sub("", self.shown).replace("\r", "")

    def wait_for(self, pattern: str, timeout_s: float = 120.0) -> re.Match[str]:
        """The first match in the text written since the start."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, self.text
            if not self._output.poll(100):
                continue
            try:
                self.shown += os.read(self._master, 65_536).decode(errors="replace")
            except OSError:  # the kernel's end of a terminal that no process has open
                raise AssertionError(f"the command ended without {pattern!r}:\n{self.text}") from None
        return found

    def end(self, timeout_s: float = 120.0) -> int:
        """Wait until the command exits by itself, and read all that it has written; returns its exit code."""
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(OSError):  # the kernel's end of a terminal that no process has open
            while True:
                assert time.monotonic() < deadline, self.text
                if self._output.poll(100):
                    self.shown += os.read(self._master, 65_536).decode(errors="replace")
        return self.process.wait(10)

    def type(self, text: bytes) -> None:
        """Press keys."""
        os.write(self._master, text)

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        if self._master >= 0:
            os.close(self._master)
        self._master = -1

    def close(self) -> None:
        """Kill the command, and close the terminal."""
        self.process.kill()
        self.process.wait(60)
        self.hang_up()
