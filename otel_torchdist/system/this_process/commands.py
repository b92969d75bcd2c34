"""Process settings of commands in the foreground: a clean stop on signals, and no garbage collection."""

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
# Handles SIGINT, SIGTERM and SIGHUP as requests to stop cleanly, or delays them.


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """A context manager that records signals instead of ending the process. A signal ends all waits.

    Signals that were ignored before (`nohup`, a shell's background job) stay ignored. Main thread only.

    Attributes:
        received: The first signal; None before it.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        # A pipe needs no lock; with an event, the code that a handler interrupts could hold the event's lock.
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> StopSignals:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def ignore_first_hangup(self) -> Callable[[], bool]:
        """Ignore the next SIGHUP, and stop at the second; return a function that tells whether the first has come."""
        hangups: list[int] = []

        def count_hangup(number: int, frame: FrameType | None) -> None:
            if hangups:
                self._record(number, frame)
            hangups.append(number)

        self._handlers.setdefault(signal.SIGHUP, signal.signal(signal.SIGHUP, count_hangup))
        return lambda: bool(hangups)

    def explain(self, error: OSError) -> bool:
        """Return whether a stop explains an output error: once the terminal is gone, nothing can be printed.

        Output fails a moment before the kernel sends SIGHUP, and a terminal that does not control this process sends
        none. So a closed terminal counts as SIGHUP here.
        """
        if self.received is None and error.errno == errno.EIO and _is_terminal_gone():
            self.received = signal.SIGHUP
        return self.received is not None

    def fileno(self) -> int:
        """Return a descriptor for `select` that becomes readable with the first signal."""
        return self._read

    def wait(self, timeout_s: float) -> None:
        """Wait for a signal or the timeout."""
        poll = select.poll()  # `select.select` fails for descriptors beyond 1023
        poll.register(self._read, select.POLLIN)
        poll.poll(timeout_s * 1000)


@contextmanager
def delaying_signals(*signals: signal.Signals) -> Generator[None]:
    """Delay signals until the end of this block; by default, all signals that end a command."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # For an earlier Ctrl-C, Python raises KeyboardInterrupt here, after the signals have been blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals or _SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _is_terminal_gone() -> bool:
    """Return whether the terminal of standard output or error has been closed; a closed pipe does not count."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


# --- garbage ----------------------------------------------------------------------------------------------------------
# Disables the cyclic garbage collector in commands: their modules and recorded calls are many objects without cycles.


@contextmanager
def without_collecting_garbage() -> Generator[None]:
    """Disable the garbage collector while recorded calls are read: it would take up to half of the time.

    Not for the user's processes, where garbage collection is the user's choice.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def freezing_imports() -> Generator[None]:
    """Exclude modules imported in this block from garbage collection, until the process ends.

    Scanning them takes a sixth of a command's start, and more time later. Not for the user's processes.
    """
    with without_collecting_garbage():
        yield
        gc.freeze()
