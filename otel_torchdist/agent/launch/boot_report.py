"""What a starting agent reports on stderr until it has its own log."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Generator
from typing import Final

from otel_torchdist.agent.launch.detached import kill_session
from otel_torchdist.files.kept import KeptDescriptor

READY_TIMEOUT_S: Final = 300.0
"""Modules load slowly from a file system that all nodes read at once; after this time we stop listening."""
KEPT_BYTES: Final = 65_536


class BootReport:
    """A pipe from a starting process; belongs to one thread."""

    def __init__(self, runs: bytes, ready: bytes) -> None:
        """Create the pipe.

        Args:
            runs: What the process writes as soon as it runs our code.
            ready: What it writes once it has found all modules.

        Raises:
            OSError: No descriptors are left.
        """
        self._runs, self._ready = runs, ready
        self._reading, self._writing = map(KeptDescriptor, os.pipe2(os.O_CLOEXEC))
        self._text = b""

    @contextlib.contextmanager
    def writing_end(self) -> Generator[int, None, None]:
        """Yield the end for the process to write to; closed here afterwards."""
        try:
            yield self._writing.fileno()
        finally:
            self._writing.close()

    def problem(self, program: str, session: int, timeout_s: float) -> str:
        """Wait until the process is ready; return the reason if it is not, else ''.

        Nothing is known of it, and nothing is reported, once the program has closed our end of the pipe.

        Args:
            program: What was started.
            session: Killed if it does not run our code within `timeout_s`, because then it is something else.
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
        """Read until the word comes or time is up; return whether the other end is still open."""
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
        """Stop listening."""
        self._reading.close()
