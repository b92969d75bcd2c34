"""Runs a command in a detached process without the program noticing the process in between.

That process, a shell that puts the command into the background, is a child of the program for only a millisecond or
two; a Python that forks would be one for thirty or more. Python's other threads are kept waiting until it has been
reaped: an `os.wait()` or a SIGCHLD handler of theirs would reap it, and the program would see a child that it does not
know.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import signal
import sys
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any, Final

from otel_torchdist.errors import TorchDistError

SHELL: Final = "/bin/sh"
HOLD_MS: Final = 50
"""How long Python's other threads are held up at most."""
SETTLE_US: Final = 3_000
"""A thread that has just released the GIL for an `os.wait()` needs a moment to enter the kernel."""

_IN_BACKGROUND: Final = ("-c", '"$0" "$@" &')
_TO_DEFAULT: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and that everything it starts would ignore as well."""
_THREADS: Final = "/proc/self/task"
_WAITS: Final = {"x86_64": (61, 247), "aarch64": (260, 95)}
"""System call numbers of `wait4` and `waitid`."""
_ANY_CHILD: Final = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_P_ALL: Final = 0
_LIBC: Final[Any] = ctypes.PyDLL(None)
"""Calls through it keep the GIL."""


class ChildrenAwaitedError(TorchDistError):
    """A thread of the program waits for any child, and would reap ours."""


def has_shell(shell: str = SHELL) -> bool:
    """Whether there is a shell; some containers have none."""
    return os.access(shell, os.X_OK)


def awaits_any_child() -> bool:
    """Whether a thread of this process is in an `os.wait()` right now, according to the kernel."""
    return _any_awaits(os.listdir(_THREADS))


def run_detached(
    command: Sequence[str],
    environ: dict[str, str],
    stderr: int,
    timeout_s: float,
    last: bool,
    shell: str = SHELL,
    hold_ms: int = HOLD_MS,
) -> int:
    """Run a command in its own session; returns the session's id.

    Without a shell, the command itself must fork and end.

    Args:
        command: What to run, and its arguments. It inherits descriptors that are not marked "close on exec".
        environ: Its environment.
        stderr: Its standard error; it has no other streams.
        timeout_s: The process in between is killed if it has not ended by then.
        last: Whether there is no later opportunity, because the program has ended.
        shell: Puts the command into the background, if it is there.
        hold_ms: How long Python's other threads are held up at most.

    Raises:
        ChildrenAwaitedError: The command was not started, because that would disturb the program.
        OSError: The command cannot be started.
    """
    whole = [shell, *_IN_BACKGROUND, *command] if has_shell(shell) else list(command)
    actions = [
        (os.POSIX_SPAWN_DUP2, stderr, 2),  # first, because it may be 0 or 1 if the program has closed these
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    threads = os.listdir(_THREADS)
    with _alone(hold_ms):
        _LIBC.usleep(SETTLE_US)
        if not last and _any_awaits(threads):
            raise ChildrenAwaitedError
        # Not `subprocess`, which lets other threads run before it returns.
        process = os.posix_spawn(whole[0], whole, environ, file_actions=actions, setsid=True, setsigdef=_TO_DEFAULT)
        is_reaped = _is_reaped_at_once(process, hold_ms)
    if not is_reaped:
        _reap(process, timeout_s)
    return process


def kill_session(session: int) -> None:
    """Kill all processes of a session; its id cannot be reused while one of them lives."""
    with contextlib.suppress(OSError):
        os.killpg(session, signal.SIGKILL)


@contextlib.contextmanager
def _alone(hold_ms: int) -> Generator[None, None, None]:
    """Keep Python's other threads waiting for the GIL for a moment."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(hold_ms / 1000)
    time.sleep(0.0001)  # threads already waiting get the GIL first; from then on the new interval applies
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)


def _any_awaits(threads: list[str]) -> bool:
    wait4, waitid = _WAITS.get(platform.machine(), (-1, -1))
    for thread in threads:
        words = _read(f"{_THREADS}/{thread}/syscall").split()
        if len(words) < 2:  # it runs, or has ended
            continue
        call, first = int(words[0], 0), int(words[1], 0)
        if (call == wait4 and first in _ANY_CHILD) or (call == waitid and first == _P_ALL):
            return True
    return False


def _read(path: str) -> bytes:
    """Read the first bytes of a file with the GIL held; empty if it cannot be read."""
    fd = _LIBC.open(path.encode(), os.O_RDONLY | os.O_CLOEXEC)
    if fd < 0:
        return b""
    content = ctypes.create_string_buffer(256)
    size = _LIBC.read(fd, content, len(content))
    _LIBC.close(fd)
    return content.raw[: max(size, 0)]


def _is_reaped_at_once(process: int, hold_ms: int) -> bool:
    """Wait for a child with the GIL held; return whether it has been reaped."""
    try:
        ended = _PollFd(os.pidfd_open(process), select.POLLIN, 0)
    except OSError:  # it has already been reaped, or the kernel has no pidfds
        return False
    _LIBC.poll(ctypes.byref(ended), 1, hold_ms)
    is_reaped = _LIBC.waitpid(process, None, os.WNOHANG) != 0
    os.close(ended.fd)
    return is_reaped


def _reap(process: int, timeout_s: float) -> None:
    """Wait in the kernel instead of polling, so that the child is reaped the moment it ends."""
    timer = threading.Timer(timeout_s, kill_session, [process])
    timer.daemon = True
    timer.start()
    with contextlib.suppress(ChildProcessError):  # the program has reaped it, or ignores SIGCHLD
        os.waitpid(process, 0)
    timer.cancel()


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))
