"""Writes the stacks of this process's threads when a reader requests them, on the tape or by a signal.

The signal is for native code that holds the GIL: `faulthandler` writes the stack of the thread that receives it,
without the GIL. The handler and its descriptor stay for the lifetime of the process: without a handler, a late signal
would kill it. Between tapes, and in forked children, the descriptor refers to /dev/null.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import itertools
import operator
import os
import signal
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.capture.core.call_sites import site_of
from otel_torchdist.capture.core.intervals import frames_by_thread
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.node.job.requests.stacks import SignalOffer, offer_path, write_stacks
from otel_torchdist.system.files.kept import high_descriptor, identity_of, refers_to
from otel_torchdist.system.this_process.locks import waits_for_lock

if TYPE_CHECKING:
    from otel_torchdist.tape.writer import TapeWriter

MAX_FRAMES: Final = 64
MAX_THREADS: Final = 64

_code_and_line: Final[Any] = operator.attrgetter("f_code", "f_lineno")


def answer_stack_request(tape: TapeWriter) -> None:
    """Write the stacks next to the tape if a reader has requested them.

    Raises:
        OSError: The stacks cannot be written.
    """
    request = tape.pending_request()
    if not request:
        return
    write_stacks(tape.path, request, current_stacks())
    tape.answer_request(request)


def current_stacks() -> list[ThreadStack]:
    """Return the stacks of all threads except this one, the main thread first."""
    current, main = threading.get_ident(), threading.main_thread().ident
    threads = {thread.ident: thread for thread in threading.enumerate()}
    idents = sorted((ident for ident in running_threads() if ident != current), key=lambda ident: ident != main)
    stacks = [_stack_of(threads.get(ident), ident) for ident in idents[:MAX_THREADS]]
    return [stack for stack in stacks if stack.frames]  # a thread may have ended by now


def running_threads() -> list[int]:
    """Return the ids of threads that run Python, including C++ threads unknown to `threading`. Keeps no frames."""
    return list(itertools.chain.from_iterable(frames_by_thread()))


def _stack_of(thread: threading.Thread | None, ident: int) -> ThreadStack:
    native_id, frames = native_id_of(thread) if thread else 0, frames_of(ident)
    if "asyncio.tasks" in sys.modules:
        from otel_torchdist.capture.core.requests.coroutines import with_coroutines

        frames = with_coroutines(ident, frames)
    return ThreadStack(
        thread=native_id,
        name=thread.name if thread else f"thread {ident}",
        frames=tuple(site_of(code, line) for code, line in frames[:MAX_FRAMES]),
        is_locked=waits_for_lock(native_id) if native_id else None,
    )


def native_id_of(thread: threading.Thread) -> int:
    """Return the kernel's id of a thread; 0 if it has none yet.

    In a forked process, `native_id` of the main thread may still be the forking thread's. The kernel's id of the main
    thread is the process id.
    """
    return os.getpid() if thread is threading.main_thread() else thread.native_id or 0


def frames_of(ident: int) -> list[tuple[CodeType, int | None]]:
    """Return code and line of each frame of a thread, innermost first.

    The thread must not run meanwhile: with Python 3.11, the process crashes if a frame that Dynamo has created is held
    beyond its end. So built-in code walks the frames: between the first and the last, no bytecode of ours runs at which
    the interpreter could switch threads.
    """
    first = map(operator.itemgetter(ident), frames_by_thread())
    steps = itertools.repeat("f_back", MAX_FRAMES - 1)
    frames = itertools.accumulate(itertools.chain(first, steps), getattr)
    code_and_lines: list[tuple[CodeType, int | None]] = []
    with contextlib.suppress(AttributeError, KeyError):  # None has no `f_back`; the thread has ended
        code_and_lines.extend(map(_code_and_line, frames))
    return code_and_lines


SIGNAL: Final = signal.SIGRTMIN + 5
_MAX_SWITCH_INTERVAL_S: Final = 0.5
"""Maximum switch interval. A thread that runs Python longer without releasing the GIL looks like native code."""
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


class _Handler:
    """The signal handler of this process, with its output descriptor."""

    def __init__(self) -> None:
        self.descriptor = -1
        self._file = (0, 0)

    def is_ready(self) -> bool:
        """Return whether the signal reaches our handler. Before the first use: whether the signal is unused."""
        if not still_offers_stacks():
            return False
        if self.descriptor < 0:
            return not _is_in_mask("SigCgt") and not _is_in_mask("SigIgn")
        return _is_in_mask("SigCgt")

    def write_to(self, file: int) -> None:
        """Redirect stacks to an open file, which the caller may close afterwards.

        Raises:
            OSError: There is no free descriptor.
        """
        if self.descriptor >= 0 and not self.is_lost:
            os.dup2(file, self.descriptor, inheritable=False)
        else:
            self.descriptor = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, high_descriptor())
            # all_threads=True reads the stacks of running threads, and crashes.
            faulthandler.register(SIGNAL, file=self.descriptor, all_threads=False, chain=False)
        self._file = identity_of(self.descriptor)

    @property
    def is_lost(self) -> bool:
        """Whether the program has closed our descriptor."""
        return self.descriptor >= 0 and not refers_to(self.descriptor, self._file)


_handler: Final = _Handler()


def offer_stacks(tape: Path) -> bool:
    """Let readers of a tape request stacks by a signal, unless other code uses it. Return whether they can.

    Call this on the main thread if possible: the first call gives its thread an alternate signal stack, and a later
    `faulthandler.enable` by the user does not do so for another thread.
    """
    if not _handler.is_ready():
        return False
    # The file gets its final name once the handler is ready.
    hidden = tape.with_name("." + offer_path(tape).name)
    try:
        file = os.open(hidden, _FLAGS, 0o600)
    except OSError:
        return False
    try:
        _handler.write_to(file)
        os.write(file, SignalOffer(SIGNAL, _handler.descriptor).encode())
        hidden.rename(offer_path(tape))
    except OSError:  # no space, or no descriptor
        hidden.unlink(missing_ok=True)
        return False
    finally:
        os.close(file)
    return True


def renew_offer(tape: Path) -> None:
    """Offer stacks by a signal again, if the program has closed the handler's descriptor."""
    if _handler.is_lost:
        withdraw_offer(tape)
        offer_stacks(tape)


def still_offers_stacks() -> bool:
    """Return whether the signal is still harmless, by quick checks in Python.

    A handler in Python's `signal` module is not ours. A long switch interval would break the readers' rule that a late
    heartbeat means native code: `faulthandler` can crash a thread that runs Python.
    """
    return signal.getsignal(SIGNAL) is signal.SIG_DFL and sys.getswitchinterval() <= _MAX_SWITCH_INTERVAL_S


def withdraw_offer(tape: Path) -> None:
    """Stop offering stacks by a signal. A late signal is handled, but writes nothing."""
    with contextlib.suppress(OSError):
        offer_path(tape).unlink()
    write_no_stacks()


def write_no_stacks() -> None:
    """Redirect stacks to /dev/null. In a forked child, this keeps its stacks out of its parent's file."""
    if _handler.descriptor < 0:
        return
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        _handler.write_to(nowhere.fileno())


def _is_in_mask(mask: str) -> bool:
    """Return whether our signal is in a mask of /proc/self/status; True if the file cannot be read."""
    with contextlib.suppress(OSError), open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(mask + ":"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return True
