"""Marks on the tape that this process was asked to end, by a signal that a scheduler sends before it takes the machine.

A handler in Python runs only when the main thread is back from the collective that it waits in. The interpreter's
wakeup descriptor gets each signal's number at once, so a thread of ours learns of it. There is one such descriptor in a
process: what it had before gets everything too, and code that sets one later (asyncio does) replaces ours.
"""

from __future__ import annotations

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

if TYPE_CHECKING:
    from otel_torchdist.capture.recorder import Recorder

_logger = logging.getLogger("otel_torchdist")

_NONE: Final = -1
"""What `set_wakeup_fd` takes and returns for no descriptor."""


class PreemptionWatch:
    """Records the first of these signals on the tape; it handles none of them."""

    def __init__(self, signals: frozenset[signal.Signals], recorder: Callable[[], Recorder | None]) -> None:
        """Watch for signals.

        Args:
            signals: The signals.
            recorder: Returns what records at the moment, None for nothing.
        """
        self._signals = signals
        self._recorder = recorder
        self._read = self._write = self._before = _NONE

    def start(self) -> None:
        """Begin; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            _logger.warning(
                "%s: the process group was not created on the main thread, so signals are not marked",
                OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS,
            )
            return
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: (watch := this()) and watch.leave_in_child())
        threading.Thread(target=self._run, name="otel-torchdist-signals", daemon=True).start()

    def stop(self) -> None:
        """End, and put back the descriptor that was there before, unless somebody has replaced ours."""
        if self._write == _NONE or threading.current_thread() is not threading.main_thread():
            return
        current = signal.set_wakeup_fd(self._before)
        if current != self._write:
            signal.set_wakeup_fd(current)
        write, self._write = self._write, _NONE
        os.close(write)  # ends the thread

    def leave_in_child(self) -> None:
        """Have a forked child's signals not end up in its parent."""
        if self._write != _NONE:
            self.stop()
            os.close(self._read)

    def _run(self) -> None:
        read = self._read
        with guard.guarded("signals"):
            while numbers := os.read(read, 64):
                self._pass_on(numbers)
                if self._signals.intersection(numbers):
                    self._mark(next(number for number in numbers if number in self._signals))
        os.close(read)

    def _pass_on(self, numbers: bytes) -> None:
        if self._before == _NONE:
            return
        try:
            os.write(self._before, numbers)
        except OSError as error:  # closed, or full: the interpreter would drop the signal too
            _logger.debug("a signal cannot be passed on: %s", error)

    def _mark(self, number: int) -> None:
        recorder = self._recorder()
        if recorder is not None:
            recorder.tape.mark_asked(number, time.monotonic_ns())
