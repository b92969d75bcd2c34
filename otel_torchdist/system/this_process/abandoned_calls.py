"""Abandons calls into torch that are still in progress on our daemon threads when Python ends.

Up to Python 3.13, `pthread_exit` ends a daemon thread that requests the GIL from a finalizing interpreter. pybind11
requests it in a destructor, which must not unwind, so C++ ends the process with SIGABRT, whatever its exit code was.
Since Python 3.14 such a thread hangs instead (gh-87135). `BackgroundCalls.abandon` has the same effect before 3.14: a
signal handler that never returns holds the thread in the kernel.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from types import TracebackType
from typing import Final, NamedTuple

from otel_torchdist import guard

GRACE_S: Final = 0.2
"""Seconds for threads to return by themselves. The code that started them has already waited for them."""
_CHECK_S: Final = 0.03
"""Seconds between two checks of a thread: several times the 5 ms after which a waiter for the GIL wakes up."""
_MAX_CHECKS: Final = 10
_SIGSET_BYTES: Final = 128
"""Size of `sigset_t` in glibc and musl."""


class BackgroundCalls:
    """The calls into torch that are in progress on our daemon threads. Wrap each call in `with BACKGROUND_CALLS:`.

    Never on a thread of the program: after `abandon`, its next call would block forever.
    """

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._is_over = False

    def __enter__(self) -> None:
        self._inside.add(threading.get_native_id())
        if self._is_over:
            self._block_forever()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._inside.discard(threading.get_native_id())

    def forget_all(self) -> None:
        """Forget all calls: a forked child has no other threads."""
        self._inside.clear()

    def abandon(self) -> None:
        """Keep all threads from returning from their calls and from beginning others. Call this as the process ends."""
        if sys.version_info >= (3, 14):
            return
        self._is_over = True
        deadline = time.monotonic() + GRACE_S
        while self._inside and time.monotonic() < deadline:
            time.sleep(0.005)
        for _ in range(_MAX_CHECKS):
            if not self._inside:
                return
            self._park_sleeping()

    def _park_sleeping(self) -> None:
        """Park the threads that sleep in the kernel. A running thread may hold a lock, such as the allocator's.

        A thread that waits for the GIL wakes up every few milliseconds, so it does not count as asleep.
        """
        before = {thread: _sleep_of(thread) for thread in tuple(self._inside)}
        time.sleep(_CHECK_S)
        for thread, sleep in before.items():
            if sleep is not None and _sleep_of(thread) == sleep and thread in self._inside:
                self._inside.discard(thread)
                _park(thread, sleep)

    def _block_forever(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


BACKGROUND_CALLS: Final = BackgroundCalls()
"""The calls of this process."""


class _Sleep(NamedTuple):
    """A thread that sleeps in the kernel.

    Attributes:
        switches: Counts of its context switches, as the kernel prints them.
        blocked: Mask of its blocked signals; bit 0 is signal 1.
    """

    switches: tuple[str, ...]
    blocked: int


def _sleep_of(thread: int) -> _Sleep | None:
    """Return the sleep of a thread; None if it is awake or unknown."""
    try:
        with open(f"/proc/self/task/{thread}/status") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        if fields["State"].split()[0] not in ("S", "D"):
            return None
        switches = fields["voluntary_ctxt_switches"], fields["nonvoluntary_ctxt_switches"]
        return _Sleep(switches, int(fields["SigBlk"], 16))
    except (OSError, ValueError, LookupError):
        return None


class _SignalAction(ctypes.Structure):
    """`struct sigaction` of glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * _SIGSET_BYTES),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def _park(thread: int, sleep: _Sleep) -> None:
    """Hold a thread in `pause`, as the handler of an unused signal that blocks all other signals."""
    libc = ctypes.PyDLL(None)  # keeps the GIL, so that the thread cannot continue in Python meanwhile
    pause = ctypes.cast(libc.pause, ctypes.c_void_p).value
    number = _unused_signal(libc, sleep.blocked, pause)
    tgkill = getattr(libc, "tgkill", None)  # glibc 2.30
    if number is None or tgkill is None:
        return
    action = _SignalAction(handler=pause)
    ctypes.memset(action.mask, 0xFF, _SIGSET_BYTES)
    if libc.sigaction(number, ctypes.byref(action), None) == 0:
        tgkill(os.getpid(), thread, number)


def _unused_signal(libc: ctypes.PyDLL, blocked: int, pause: int | None) -> int | None:
    """Return a real-time signal that is neither blocked nor handled, except by `pause`; None if there is none."""
    for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1):
        current = _SignalAction()
        if blocked >> (number - 1) & 1 or libc.sigaction(number, None, ctypes.byref(current)) != 0:
            continue
        if current.handler in (None, pause):
            return number
    return None


def _abandon() -> None:
    with guard.guarded("calls under way at the end"):
        BACKGROUND_CALLS.abandon()


# Registered at import, so it runs after the handlers that capture registers for the end of a tape.
atexit.register(_abandon)
os.register_at_fork(after_in_child=BACKGROUND_CALLS.forget_all)
