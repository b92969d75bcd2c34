"""A signal by which a reader gets a stack of this process while native code holds the GIL.

`faulthandler` writes it: the stack of the one thread that the signal comes to, and without the GIL. The handler and
its descriptor belong to the process and stay as long as it lives: without a handler a late signal would kill. Between
tapes, and in forked children, the descriptor leads to /dev/null.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

from otel_torchdist.tape.stack_signal import SignalOffer, offer_path

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
