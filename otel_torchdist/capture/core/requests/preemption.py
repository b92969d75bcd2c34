"""Records preemption signals, which a scheduler sends before it takes the machine.

A Python handler runs only when the main thread has returned from the collective that it waits for. The interpreter's
wakeup descriptor receives each signal's number immediately, and our thread reads it. A process has one such descriptor:
we pass everything on to the previous descriptor, and code that sets one later (asyncio does) replaces ours.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from otel_torchdist import guard
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS
from otel_torchdist.system.files.kept import KeptDescriptor

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder

_logger = logging.getLogger("otel_torchdist")

_PATIENCE_S: Final = 1.0
"""Maximum time at the end to record signals that have arrived."""
_NONE: Final = -1
"""Value that `set_wakeup_fd` takes and returns for "no descriptor"."""


class PreemptionWatch:
    """Recorder of preemption signals. It does not handle them."""

    def __init__(self, signals: frozenset[signal.Signals], recorder: Callable[[], Recorder | None]) -> None:
        """Initialize the watch. `start` begins it.

        Args:
            signals: The signals.
            recorder: Returns the current recorder, or None.
        """
        self._signals = signals
        self._recorder = recorder
        self._read: KeptDescriptor | None = None
        self._write: KeptDescriptor | None = None
        self._before = self._wakeup = _NONE
        self._replacing = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start watching. Requires the main thread."""
        if threading.current_thread() is not threading.main_thread():
            _logger.warning(
                "%s: the process group was not created on the main thread, so signals are not recorded",
                OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS,
            )
            return
        self._read, self._write = map(KeptDescriptor, os.pipe2(os.O_CLOEXEC))
        self._wakeup = self._write.fileno()
        os.set_blocking(self._wakeup, False)
        self._before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: (watch := reference()) and watch.leave_in_child())
        self._thread = threading.Thread(target=self._run, name="otel-torchdist-signals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and restore the previous wakeup descriptor, unless other code has replaced ours.

        Signals that have arrived before are recorded: a handler may have ended the program with the first of them.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        with self._replacing:
            write, self._write = self._write, None
        if write is None:
            return
        current = signal.set_wakeup_fd(self._before)
        if current != self._wakeup:
            signal.set_wakeup_fd(current)
        write.close()  # ends the thread, once it has read everything
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    def leave_in_child(self) -> None:
        """Keep a forked child's signals out of its parent's pipe."""
        self._replacing = threading.Lock()
        self._thread = None
        if self._write is not None and self._read is not None:
            self.stop()
            self._read.close()

    def _run(self) -> None:
        with guard.guarded("signals"):
            while (read := self._read) is not None and self._write is not None:
                self._follow(read)
                read.close()
                if not self._replace():
                    break

    def _follow(self, read: KeptDescriptor) -> None:
        """Record the signals from a pipe until either end is closed."""
        with guard.guarded("signals"):
            while read.is_open and (numbers := os.read(read.fileno(), 64)):
                self._pass_on(numbers)
                if self._signals.intersection(numbers):
                    self._mark(next(number for number in numbers if number in self._signals))

    def _replace(self) -> bool:
        """Replace a pipe that the program has closed. Return whether this succeeded.

        Only the main thread can set another wakeup descriptor. So the new pipe must get the old descriptor number.
        """
        with self._replacing:
            if self._write is None:
                return False  # `stop` has closed it
            self._write.close()
            read, write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(write, False)
            descriptor = fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, self._wakeup)  # or the next free number
            os.close(write)
            self._read, self._write = KeptDescriptor(read), KeptDescriptor(descriptor, moves=False)
            if descriptor == self._wakeup:
                return True
            self._read.close()
            self._write.close()
        _logger.warning(
            "%s: the program has closed our descriptor, so signals are no longer recorded",
            OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS,
        )
        return False

    def _pass_on(self, numbers: bytes) -> None:
        if self._before == _NONE:
            return
        try:
            os.write(self._before, numbers)
        except OSError as error:  # closed or full: the interpreter would drop the signal, too
            _logger.debug("a signal cannot be passed on: %s", error)

    def _mark(self, number: int) -> None:
        recorder = self._recorder()
        if recorder is not None:
            recorder.tape.mark_asked(number, time.monotonic_ns())
