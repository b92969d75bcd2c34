"""Writes where every thread of this process is when a reader asks, by a request or by a signal.

The signal is for when native code holds the GIL: `faulthandler` writes the stack of the one thread that it comes to,
without the GIL. The handler and its descriptor belong to the process and stay as long as it lives: without a handler a
late signal would kill. Between tapes, and in forked children, the descriptor leads to /dev/null.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import itertools
import operator
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.job.requests import SignalOffer, offer_path
from otel_torchdist.job.stacks import ThreadStack, write_stacks
from otel_torchdist.tape.records import CallSiteName

if TYPE_CHECKING:
    from otel_torchdist.tape.writer import TapeWriter

MAX_FRAMES: Final = 64
MAX_THREADS: Final = 64

_frames_by_thread: Final[Any] = sys._current_frames  # pyright: ignore[reportPrivateUsage]  # documented, and its only name
_code_and_line: Final[Any] = operator.attrgetter("f_code", "f_lineno")


def answer_stack_request(tape: TapeWriter) -> None:
    """Write the stacks beside the tape if somebody asked for them.

    Raises:
        OSError: The stacks cannot be written.
    """
    request = tape.pending_request()
    if not request:
        return
    write_stacks(tape.path, request, current_stacks())
    tape.answer_request(request)


def current_stacks() -> list[ThreadStack]:
    """The stacks of all threads but this one, the main thread first."""
    here, main = threading.get_ident(), threading.main_thread().ident
    threads = {thread.ident: thread for thread in threading.enumerate()}
    idents = sorted((ident for ident in _running() if ident != here), key=lambda ident: ident != main)
    stacks = [_stack_of(threads.get(ident), ident) for ident in idents[:MAX_THREADS]]
    return [stack for stack in stacks if stack.frames]  # a thread may be over by now


def _running() -> list[int]:
    """Threads that run Python, also those of C++ that `threading` does not list; no frame is held here either."""
    return list(itertools.chain.from_iterable(itertools.islice(iter(_frames_by_thread, None), 1)))


def _stack_of(thread: threading.Thread | None, ident: int) -> ThreadStack:
    return ThreadStack(
        thread=(thread.native_id if thread else None) or 0,
        name=thread.name if thread else f"thread {ident}",
        frames=tuple(_site(code, line) for code, line in _frames_of(ident)),
    )


def _frames_of(ident: int) -> list[tuple[CodeType, int | None]]:
    """Code and line of each frame of a thread, innermost first.

    The thread must not run meanwhile: with Python 3.11 a process crashes if frames of a thread that compiles are held
    until they are over, for Dynamo makes and clears frames itself. So built-in code drives the whole walk: no
    instruction of ours lies between the first frame and the last, where the interpreter could let another thread run.
    """
    first = map(operator.itemgetter(ident), itertools.islice(iter(_frames_by_thread, None), 1))
    steps = itertools.repeat("f_back", MAX_FRAMES - 1)
    frames = itertools.accumulate(itertools.chain(first, steps), getattr)
    found: list[tuple[CodeType, int | None]] = []
    with contextlib.suppress(AttributeError, KeyError):  # None has no caller; the thread is over
        found.extend(map(_code_and_line, frames))
    return found


def _site(code: CodeType, line: int | None) -> CallSiteName:
    return CallSiteName(getattr(code, "co_qualname", code.co_name), code.co_filename, line or 0)


SIGNAL: Final = signal.SIGRTMIN + 5
_HIGH: Final = 4096
"""A process's table of descriptors grows to the highest one."""
_BELOW_LIMIT: Final = 64
_LONG_TURN_S: Final = 0.5
"""A thread that may run Python for longer than this without giving the GIL up would be taken for native code."""
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


class _Handler:
    """The handler of this process, and the descriptor to which it writes."""

    def __init__(self) -> None:
        self.descriptor = -1
        self._file = (0, 0)

    def is_ready(self) -> bool:
        """Whether the signal would come to our handler; the first time, whether nobody else uses it."""
        if not still_offers_stacks():
            return False
        if self.descriptor < 0:
            return not _has_bit("SigCgt") and not _has_bit("SigIgn")
        return _has_bit("SigCgt")

    def write_to(self, file: int) -> None:
        """Have stacks written to where an open file leads, which can be closed then.

        Raises:
            OSError: There is no free descriptor.
        """
        if self._is_ours():
            os.dup2(file, self.descriptor, inheritable=False)
        else:
            self.descriptor = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _high_descriptor())
            # all_threads=True reads the stacks of threads that run, and crashes.
            faulthandler.register(SIGNAL, file=self.descriptor, all_threads=False, chain=False)
        self._file = _identity(self.descriptor)

    def _is_ours(self) -> bool:
        """Whether our descriptor still leads where we let it lead: user code may close what it did not open."""
        if self.descriptor < 0:
            return False
        with contextlib.suppress(OSError):
            return _identity(self.descriptor) == self._file
        return False


_handler: Final = _Handler()


def offer_stacks(tape: Path) -> bool:
    """Let readers of a tape ask for stacks by a signal, unless somebody else uses it; returns whether they can.

    To be called on the main thread if possible: the first call gives the thread an alternate signal stack, which a
    later `faulthandler.enable` of the user's would then not do for another thread.
    """
    if not _handler.is_ready():
        return False
    # It appears under its name only when the handler is ready.
    hidden = tape.with_name("." + offer_path(tape).name)
    try:
        file = os.open(hidden, _FLAGS, 0o600)
    except OSError:
        return False
    try:
        _handler.write_to(file)
        os.write(file, SignalOffer(SIGNAL, _handler.descriptor).encode())
        hidden.rename(offer_path(tape))
    except OSError:  # no room, or no descriptor
        hidden.unlink(missing_ok=True)
        return False
    finally:
        os.close(file)
    return True


def still_offers_stacks() -> bool:
    """Whether a signal still does no harm, as far as Python itself can say at once.

    A handler that its signal module knows of is never ours. And readers know by a late heartbeat that no Python runs,
    which must be so: `faulthandler` can crash a thread that does.
    """
    return signal.getsignal(SIGNAL) is signal.SIG_DFL and sys.getswitchinterval() <= _LONG_TURN_S


def withdraw_offer(tape: Path) -> None:
    """Let nobody signal this process any more; a signal that comes late is taken and nothing is written."""
    with contextlib.suppress(OSError):
        offer_path(tape).unlink()
    write_no_stacks()


def write_no_stacks() -> None:
    """Let the handler write to nowhere; in a forked child, so that nothing of it gets into its parent's file."""
    if _handler.descriptor < 0:
        return
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        _handler.write_to(nowhere.fileno())


def _high_descriptor() -> int:
    """Where our descriptor is out of the way of programs that close low ones, or hand them to `select`."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    ceiling = _HIGH if limit == resource.RLIM_INFINITY else min(limit, _HIGH)
    return max(ceiling - _BELOW_LIMIT, 3)


def _identity(file: int) -> tuple[int, int]:
    facts = os.fstat(file)
    return facts.st_dev, facts.st_ino


def _has_bit(mask: str) -> bool:
    """Whether our signal is in one of the masks of /proc/self/status; yes where that cannot be read."""
    with contextlib.suppress(OSError), open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(mask + ":"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return True
