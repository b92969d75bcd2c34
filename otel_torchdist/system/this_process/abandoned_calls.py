"""Calls into torch that threads of ours have not come back from when Python ends.

Up to Python 3.13 a daemon thread that asks a finalizing interpreter for the GIL is ended by `pthread_exit` on the spot.
pybind11 asks in a destructor, which must not unwind, so C++ ends the process with SIGABRT, whatever its exit code was.
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
"""How long threads have for coming back by themselves. Who has started them has waited for them before."""
_LOOK_S: Final = 0.03
"""Several times the 5 ms after which a thread that waits for the GIL wakes to ask for it."""
_LOOKS: Final = 10
_SIGSET_BYTES: Final = 128
"""Size of `sigset_t` in glibc and musl."""


class BackgroundCalls:
    """The calls into torch that are under way on daemon threads of ours; `with` it around each of them.

    Never on a thread of the program: after `abandon` its next call would wait for ever.
    """

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._is_over = False

    def __enter__(self) -> None:
        self._inside.add(threading.get_native_id())
        if self._is_over:
            self._wait_for_ever()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._inside.discard(threading.get_native_id())

    def forget_all(self) -> None:
        """Forget them: this is a forked child, which has no other threads."""
        self._inside.clear()

    def abandon(self) -> None:
        """Let no thread come back from its call, nor begin another. For the end of the process."""
        if sys.version_info >= (3, 14):
            return
        self._is_over = True
        deadline = time.monotonic() + GRACE_S
        while self._inside and time.monotonic() < deadline:
            time.sleep(0.005)
        for _ in range(_LOOKS):
            if not self._inside:
                return
            self._park_sleeping()

    def _park_sleeping(self) -> None:
        """Park the threads that sleep in the kernel. A running one may hold a lock, such as the allocator's.

        A thread that waits for the GIL wakes every few milliseconds, so it is not taken for asleep.
        """
        before = {thread: _sleep_of(thread) for thread in tuple(self._inside)}
        time.sleep(_LOOK_S)
        for thread, sleep in before.items():
            if sleep is not None and _sleep_of(thread) == sleep and thread in self._inside:
                self._inside.discard(thread)
                _park(thread, sleep)

    def _wait_for_ever(self) -> None:
        never = threading.Lock()
        never.acquire()
        never.acquire()


BACKGROUND_CALLS: Final = BackgroundCalls()
"""The calls of this process."""


class _Sleep(NamedTuple):
    """A thread that sleeps in the kernel.

    Attributes:
        switches: How often it has been switched away so far, as the kernel prints it.
        blocked: The signals that it blocks, a bit each; bit 0 is signal 1.
    """

    switches: tuple[str, ...]
    blocked: int


def _sleep_of(thread: int) -> _Sleep | None:
    """Return None if a thread is awake, or if the kernel does not say."""
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
    """Hold a thread in `pause`, called as the handler of an unused signal, in which all others are blocked."""
    libc = ctypes.PyDLL(None)  # keeps the GIL, so the thread cannot go on in Python meanwhile
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
        now = _SignalAction()
        if blocked >> (number - 1) & 1 or libc.sigaction(number, None, ctypes.byref(now)) != 0:
            continue
        if now.handler in (None, pause):
            return number
    return None


def _abandon() -> None:
    with guard.guarded("calls under way at the end"):
        BACKGROUND_CALLS.abandon()


# Registered on import, so it runs behind what capture registers for the end of a tape.
atexit.register(_abandon)
os.register_at_fork(after_in_child=BACKGROUND_CALLS.forget_all)
