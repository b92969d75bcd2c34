"""SIGINT, SIGTERM and SIGHUP as a request to stop in good order, for the foreground processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While entered, signals that would end this process are noted instead, and end every wait.

    Those that were ignored before (`nohup`, a shell's background job) stay ignored. Main thread only.

    Attributes:
        received: The first signal; None while there was none.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        # A lock or an event could be held by the very code that a handler interrupts; a pipe can not.
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> StopSignals:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def spend_first_hangup(self) -> Callable[[], bool]:
        """From now on the first SIGHUP stops nothing, and the second one does; returns what tells whether it came."""
        hangups: list[int] = []

        def note(number: int, frame: FrameType | None) -> None:
            if hangups:
                self._note(number, frame)
            hangups.append(number)

        self._handlers.setdefault(signal.SIGHUP, signal.signal(signal.SIGHUP, note))
        return lambda: bool(hangups)

    def fileno(self) -> int:
        """Readable once there was a signal, for `select`."""
        return self._read

    def wait(self, timeout_s: float) -> None:
        """Wait for a signal, or until the time is over."""
        poll = select.poll()  # `select.select` fails for descriptors beyond 1023
        poll.register(self._read, select.POLLIN)
        poll.poll(timeout_s * 1000)
