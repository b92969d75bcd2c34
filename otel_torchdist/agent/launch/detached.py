"""Runs a command in a detached process, and hides the intermediate process from the program.

The intermediate process is a shell that puts the command into the background. It is a child of the program, and ends
after one or two milliseconds; a Python interpreter that forks would take thirty or more. Until it has been reaped, the
GIL is kept from Python's other threads: an `os.wait()` or a SIGCHLD handler in one of them would reap it, and the
program would see an unknown child.
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
"""Longest time that Python's other threads have to wait."""
SETTLE_US: Final = 3_000
"""A thread that has just released the GIL for an `os.wait()` needs a moment to enter the kernel."""

_IN_BACKGROUND: Final = ("-c", '"$0" "$@" &')
_TO_DEFAULT: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores; its children would inherit that."""
_THREADS: Final = "/proc/self/task"
_WAITS: Final = {"x86_64": (61, 247), "aarch64": (260, 95)}
"""System call numbers of `wait4` and `waitid`."""
_ANY_CHILD: Final = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_P_ALL: Final = 0
_LIBC: Final[Any] = ctypes.PyDLL(None)
"""The C library. A call through `PyDLL` keeps the GIL."""


class ChildrenAwaitedError(TorchDistError):
    """A thread of the program is waiting for any child, and would reap the intermediate process."""


def has_shell(shell: str = SHELL) -> bool:
    """Return whether there is a shell; some containers have none."""
    return os.access(shell, os.X_OK)


def awaits_any_child() -> bool:
    """Return whether a thread of this process is in an `os.wait()` now, according to the kernel."""
    return _any_awaits(os.listdir(_THREADS))


def run_detached(
    command: Sequence[str],
    environ: dict[str, str],
    stderr: int,
    timeout_s: float,
    is_program_over: bool,
    shell: str = SHELL,
    hold_ms: int = HOLD_MS,
) -> int:
    """Run a command in its own session; return the session's id.

    Without a shell, the command itself must fork, and its parent must end.

    Args:
        command: Program and arguments. It inherits descriptors that are not marked "close on exec".
        environ: Its environment.
        stderr: Descriptor of its standard error; input and output are `/dev/null`.
        timeout_s: Time after which the intermediate process is killed.
        is_program_over: Whether the program has ended, so that the command may be started even if that disturbs it.
        shell: Path of the shell.
        hold_ms: Longest time that Python's other threads have to wait, in milliseconds.

    Raises:
        ChildrenAwaitedError: The command was not started, because a thread waits for any child.
        OSError: The command cannot be started.
    """
    full_command = [shell, *_IN_BACKGROUND, *command] if has_shell(shell) else list(command)
    actions = [
        (os.POSIX_SPAWN_DUP2, stderr, 2),  # first, because it may be 0 or 1 if the program has closed these
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    threads = os.listdir(_THREADS)
    with _holding_gil(hold_ms):
        _LIBC.usleep(SETTLE_US)
        if not is_program_over and _any_awaits(threads):
            raise ChildrenAwaitedError
        # Not `subprocess`: it lets other threads run before it returns.
        process = os.posix_spawn(
            full_command[0], full_command, environ, file_actions=actions, setsid=True, setsigdef=_TO_DEFAULT
        )
        is_reaped = _is_reaped_at_once(process, hold_ms)
    if not is_reaped:
        _reap(process, timeout_s)
    return process


def kill_session(session: int) -> None:
    """Kill all processes of a session. The kernel does not reuse its id while one of them lives."""
    with contextlib.suppress(OSError):
        os.killpg(session, signal.SIGKILL)


@contextlib.contextmanager
def _holding_gil(hold_ms: int) -> Generator[None, None, None]:
    """Keep the GIL from Python's other threads, for at most `hold_ms`."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(hold_ms / 1000)
    time.sleep(0.0001)  # lets threads that already wait for the GIL have it first: they use the old interval
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)


def _any_awaits(threads: list[str]) -> bool:
    wait4, waitid = _WAITS.get(platform.machine(), (-1, -1))
    for thread in threads:
        words = _read(f"{_THREADS}/{thread}/syscall").split()
        if len(words) < 2:  # the thread is running, or has ended
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
    """Wait for a child, keeping the GIL; return whether it has been reaped."""
    try:
        child_end = _PollFd(os.pidfd_open(process), select.POLLIN, 0)
    except OSError:  # the child has already been reaped, or the kernel has no pidfds
        return False
    _LIBC.poll(ctypes.byref(child_end), 1, hold_ms)
    is_reaped = _LIBC.waitpid(process, None, os.WNOHANG) != 0
    os.close(child_end.fd)
    return is_reaped


def _reap(process: int, timeout_s: float) -> None:
    """Reap a child as soon as it ends: wait for it in the kernel instead of polling."""
    timer = threading.Timer(timeout_s, kill_session, [process])
    timer.daemon = True
    timer.start()
    with contextlib.suppress(ChildProcessError):  # the program has reaped the child, or ignores SIGCHLD
        os.waitpid(process, 0)
    timer.cancel()


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))
