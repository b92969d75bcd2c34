"""Processes that can never go on: all of their threads wait, without a limit, for locks that only they can release.

A process that is forked while another thread of its parent holds a lock inherits the lock as held, and not the thread
that would release it. Futexes that processes share do not count: a worker without work waits for one, the lock of the
queue from which another worker reads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.processes.children import on_processor_ns
from otel_torchdist.processes.state import threads_of
from otel_torchdist.processes.system_calls import SystemCall, call_of

MAX_THREADS: Final = 64
LOADER_THREAD: Final = "pt_data_worker"
"""The name that torch gives to DataLoader workers and so to their threads."""
_ACCEPTS: Final = frozenset({"accept", "accept4"})
"""What the thread waits in by which a DataLoader worker hands descriptors of shared memory to the rank."""
_OPERATION, _TIMEOUT = 2, 4
"""Words of the arguments of `futex` as /proc shows them, after the call's number and the address."""
_PRIVATE: Final = 128
_OPTIONS: Final = _PRIVATE | 256
"""`FUTEX_PRIVATE_FLAG`, and with it `FUTEX_CLOCK_REALTIME`, of linux/futex.h."""
_WAITS: Final = frozenset({0, 9})
"""`FUTEX_WAIT` and `FUTEX_WAIT_BITSET`."""


@dataclass(frozen=True, slots=True)
class LockWait:
    """A process that waits for its own locks.

    Attributes:
        pid: Its process id.
        arguments: The system calls of its threads, which distinguish one wait from the next.
        since_ns: When the last of its threads ran, on the monotonic clock; None if the kernel does not show it.
        is_loader: Whether it is a DataLoader worker.
        is_forked: Whether it was forked from its parent and runs the same program.
    """

    pid: int
    arguments: str
    since_ns: int | None
    is_loader: bool
    is_forked: bool


def lock_wait_of(pid: int, parent: int, now_ns: int) -> LockWait | None:
    """Return the wait of a process for its own locks; None if one of its threads may go on.

    Args:
        pid: The process.
        parent: Its parent.
        now_ns: The monotonic clock now.
    """
    threads = [int(thread) for thread in threads_of(pid)]
    is_loader = _name_of(pid) == LOADER_THREAD
    if not 0 < len(threads) <= MAX_THREADS:
        return None
    calls = {thread: call_of(Path(f"/proc/{pid}/task/{thread}")) for thread in threads}
    if pid not in calls or not waits_for_own_lock(calls[pid]):
        return None
    if not all(waits_for_own_lock(call) or (is_loader and call.name in _ACCEPTS) for call in calls.values()):
        return None
    ran = [on_processor_ns(pid, now_ns, thread) for thread in threads]
    known = [one for one in ran if one is not None]
    return LockWait(
        pid=pid,
        arguments="; ".join(call.arguments for call in calls.values()),
        since_ns=max(known) if len(known) == len(ran) else None,
        is_loader=is_loader,
        is_forked=_command_of(pid) == _command_of(parent) != b"",
    )


def waits_for_own_lock(call: SystemCall) -> bool:
    """Whether a thread waits, without a limit, for a lock that no other process can release."""
    words = call.arguments.split()
    if call.name != "futex" or len(words) <= _TIMEOUT:
        return False
    operation, timeout = int(words[_OPERATION], 16), int(words[_TIMEOUT], 16)
    return bool(operation & _PRIVATE) and operation & ~_OPTIONS in _WAITS and not timeout


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _command_of(pid: int) -> bytes:
    try:
        return os.readlink(f"/proc/{pid}/exe").encode() + Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
