"""What commands in the foreground do with their process: stop cleanly on signals, and leave garbage alone."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

# --- signals ----------------------------------------------------------------------------------------------------------
# SIGINT, SIGTERM and SIGHUP as requests to stop cleanly, for the foreground processes.


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While entered, records signals that would end this process; each ends every wait.

    Signals that were ignored before (`nohup`, a shell's background job) stay ignored. Main thread only.

    Attributes:
        received: The first signal; None until there is one.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        # The code that a handler interrupts could hold a lock or an event's lock; a pipe has none.
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
        """Ignore the first SIGHUP from now on and stop at the second; returns a check for whether the first came."""
        hangups: list[int] = []

        def note(number: int, frame: FrameType | None) -> None:
            if hangups:
                self._note(number, frame)
            hangups.append(number)

        self._handlers.setdefault(signal.SIGHUP, signal.signal(signal.SIGHUP, note))
        return lambda: bool(hangups)

    def explain(self, error: OSError) -> bool:
        """Whether an error is due to the end: once the terminal is gone, nothing can be printed.

        The kernel fails what is printed a moment before it sends SIGHUP, and sends none from a terminal that does not
        control this process; this counts as SIGHUP then.
        """
        if self.received is None and error.errno == errno.EIO and _is_terminal_gone():
            self.received = signal.SIGHUP
        return self.received is not None

    def fileno(self) -> int:
        """Return a descriptor for `select` that is readable once there was a signal."""
        return self._read

    def wait(self, timeout_s: float) -> None:
        """Wait for a signal or the timeout."""
        poll = select.poll()  # `select.select` fails for descriptors beyond 1023
        poll.register(self._read, select.POLLIN)
        poll.poll(timeout_s * 1000)


def _is_terminal_gone() -> bool:
    """Whether the terminal of the standard output or error has been closed; of a pipe, the kernel reports otherwise."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


# --- garbage ----------------------------------------------------------------------------------------------------------
# The cyclic garbage collector, in commands: what they import and what they read are many objects, and no garbage.


@contextmanager
def without_collecting_garbage() -> Generator[None]:
    """Recorded calls are many small objects without cycles; looking for these takes up to half of the time.

    Not for a process of the user's: whether garbage is collected there is the user's choice.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def keeping_what_is_imported() -> Generator[None]:
    """Modules stay; looking for garbage among them takes a sixth of a command's start, and again as long as it runs.

    Not for a process of the user's, either.
    """
    with without_collecting_garbage():
        yield
        gc.freeze()
