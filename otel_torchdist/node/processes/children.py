"""Inspects the children of a rank: DataLoader workers, checkpoint processes and other helpers.

/proc shows without a debugger the system call that a process is in, the file of that call, and the file system of that
file. An idle worker waits for a message from its parent, in a pipe.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.model.rank_state.lives import SLEEPS_UNINTERRUPTIBLY
from otel_torchdist.model.text import readable
from otel_torchdist.node.processes.state import SystemCall, call_of, name_of, threads_of
from otel_torchdist.tape.identity import TapeIdentity, process_state, shares_pids, stat_fields

MAX_CHILDREN: Final = 256
MAX_MOUNTS_BYTES: Final = 1 << 20
_NOT_STORED: Final = ("pipe:", "anon_inode:", "/dev/", "/proc/", "/memfd:")
_IDLE: Final = frozenset({"", "running", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "futex"})


@dataclass(frozen=True, slots=True)
class ChildView:
    """The activity of a child process.

    Attributes:
        pid: Process id.
        state: State letter of /proc.
        call: System call of the main thread.
        file: File that the call is about; '' for none.
        mount: File system of the file: `nfs4 at /data`; '' if unknown.
    """

    pid: int
    state: str
    call: SystemCall
    file: str
    mount: str

    @property
    def is_stuck(self) -> bool:
        """Whether the child is in uninterruptible sleep or in a call on a file. An idle worker is in neither."""
        if self.state == SLEEPS_UNINTERRUPTIBLY:
            return True
        return bool(self.file) and not self.file.startswith(_NOT_STORED) and self.call.name not in _IDLE

    @property
    def doing(self) -> str:
        """The activity in a few words, such as `in read() of /data/shard-7 (nfs4 at /data)`."""
        call = f"in {self.call.name}()" if self.call.name not in ("", "running") else ""
        if self.file:
            call += f" of {self.file}" + (f" ({self.mount})" if self.mount else "")
        if self.state == SLEEPS_UNINTERRUPTIBLY:
            return f"{call or 'in the kernel'}, in uninterruptible sleep"
        return call or ("running" if self.state == "R" else f"in state {self.state or 'unknown'}")


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, in the order of their start."""
    children: list[int] = []
    for thread in threads_of(pid):
        with contextlib.suppress(OSError, ValueError):  # the thread has just ended
            children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    started = {child: state[1] for child in children if (state := process_state(child)) is not None}
    return sorted(started, key=lambda child: (started[child], child))[:MAX_CHILDREN]


def inspect_child(pid: int) -> ChildView | None:
    """Return the activity of a child; None if it is gone."""
    state = process_state(pid)
    if state is None:
        return None
    folder = Path(f"/proc/{pid}")
    call = call_of(folder)
    file = _file_of(folder, call.descriptor) if call.descriptor >= 0 else ""
    return ChildView(pid, state[0], call, readable(file), readable(_mount_of(folder, file)))


@dataclass(frozen=True, slots=True)
class Command:
    """Another program that a process has started, for example with `subprocess`.

    Attributes:
        pid: Process id.
        name: Name of the program.
        age_ns: Time since its start.
    """

    pid: int
    name: str
    age_ns: int


def command_of(pid: int, parent: int) -> Command | None:
    """Return the program of a child; None if it is a worker that runs the parent's program, or has ended."""
    state = process_state(pid)
    try:
        arguments, parent_arguments = (Path(f"/proc/{process}/cmdline").read_bytes() for process in (pid, parent))
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return None
    if state is None or state[0] == "Z" or arguments == parent_arguments or b"multiprocessing" in arguments:
        return None
    return Command(pid, readable(name), _age_ns(state[1]))


def _age_ns(started: int) -> int:
    """Return the time since a process's start, which is given in clock ticks since boot."""
    started_ns = started * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return max(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns, 0)


def on_processor_ns(pid: int, now_ns: int, thread: int = 0) -> int | None:
    """Return the monotonic time at which a thread was last on a processor; None if the kernel does not show it.

    For a blocked thread this is when its system call began, plus the time that the call took to block. The kernel's
    clock for this differs from the monotonic clock. This process, which is running now, shows by how much.

    Args:
        pid: Process id.
        now_ns: The monotonic clock now.
        thread: Native thread id; 0 for the main thread.
    """
    theirs, ours = _exec_start_ns(f"/proc/{pid}/task/{thread or pid}/sched"), _exec_start_ns("/proc/thread-self/sched")
    read_ns = time.monotonic_ns()  # later than `now_ns` if this process has waited for a core since
    return None if theirs is None or ours is None else min(now_ns, read_ns - max(ours - theirs, 0))


def _exec_start_ns(file: str) -> int | None:
    try:
        lines = Path(file).read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    start_ms = next((line.rpartition(":")[2] for line in lines if line.startswith("se.exec_start")), "")
    try:
        return round(float(start_ms) * 1e6)
    except ValueError:
        return None


def _file_of(process: Path, descriptor: int) -> str:
    try:
        return os.readlink(process / "fd" / str(descriptor))
    except OSError:
        return ""


def _mount_of(process: Path, file: str) -> str:
    """Return the file system of a file: the one with the longest mount point above it; '' if unknown."""
    if not file.startswith("/") or file.startswith(_NOT_STORED):
        return ""
    try:
        with open(process / "mountinfo", encoding="utf-8", errors="replace") as stream:
            lines = stream.read(MAX_MOUNTS_BYTES).splitlines()
    except OSError:
        return ""
    longest_point, kind = "", ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        mount_point = fields.split(" ")[4] if fields.count(" ") >= 4 else ""
        is_above = mount_point == "/" or file == mount_point or file.startswith(f"{mount_point}/")
        if mount_point and is_above and len(mount_point) >= len(longest_point):
            longest_point, kind = mount_point, rest.partition(" ")[0]
    return f"{kind} at {longest_point}" if longest_point else ""


# --- processor time ---------------------------------------------------------------------------------------------------
# The share of a core that a rank and its child processes use while the rank calls no operations.
# A rank that evaluates, prepares data or compiles uses a core, or its children do. A rank that waits for a lock, a file
# or a server sleeps, or polls now and then.


QUIET_NS: Final = 2_000_000_000
"""Time without operations after which a rank is measured."""
MIN_INTERVAL_NS: Final = 2_000_000_000
"""Minimum time between two measurements."""
MAX_DEPTH: Final = 3
MAX_PROCESSES: Final = 64
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12
"""Fields of `/proc/<pid>/stat`, counted from the state letter."""


class CpuTime:
    """The processor time of one rank and its children, measured from time to time."""

    def __init__(self, identity: TapeIdentity) -> None:
        """Measure the writer of a tape, unless it is in another PID namespace or from another boot."""
        self._pid, self._began = identity.pid, identity.pid_start_ticks
        self._is_in_reach = shares_pids(identity)
        self._measured_ns = 0
        self._ticks: dict[int, int] = {}
        self._cores: float | None = None

    def check(self, now_ns: int, called_ns: int) -> float | None:
        """Return the cores used lately, such as 0.5 or 2.0; None while the rank calls operations, or if unknown."""
        if not self._is_in_reach or now_ns - called_ns < QUIET_NS:
            self._measured_ns, self._cores = 0, None
        elif now_ns - self._measured_ns >= MIN_INTERVAL_NS:
            self._measure(now_ns)
        return self._cores

    def _measure(self, now_ns: int) -> None:
        state = process_state(self._pid)
        before, before_ns = self._ticks, self._measured_ns
        self._ticks = ticks_of_tree(self._pid) if state is not None and state[1] == self._began else {}
        self._measured_ns = now_ns
        has_before = bool(before_ns and before)
        self._cores = cores_between(before, self._ticks, (now_ns - before_ns) / 1e9) if has_before else None


def cores_between(before: Mapping[int, int], after: Mapping[int, int], seconds: float) -> float:
    """Return the cores that processes have used between two readings of `ticks_of_tree`.

    A child that is missing in the first reading counts with all its time.
    """
    return sum(max(ticks - before.get(pid, 0), 0) for pid, ticks in after.items()) / _TICKS / seconds


def ticks_of_tree(pid: int) -> dict[int, int]:
    """Return the clock ticks that a process and its descendants have used, by pid."""
    ticks: dict[int, int] = {}
    level = [pid]
    for _ in range(MAX_DEPTH):
        for process in level:
            try:
                fields = stat_fields(process)
            except OSError:
                continue
            ticks[process] = int(fields[_USER]) + int(fields[_SYSTEM])
        level = [child for process in level for child in children_of(process)][: MAX_PROCESSES - len(ticks)]
    return ticks


# --- deadlocks on locks -----------------------------------------------------------------------------------------------
# Detects deadlocked processes: all their threads wait, without a timeout, for locks that only the process can release.
# A process that is forked while another thread of its parent holds a lock inherits the held lock, but not the thread
# that would release it. Futexes shared between processes do not count: an idle worker waits for the lock of the queue
# from which another worker reads.


MAX_THREADS: Final = 64
LOADER_THREAD: Final = "pt_data_worker"
"""Torch's name for DataLoader workers, and so for their threads."""
_ACCEPTS: Final = frozenset({"accept", "accept4"})
"""Calls of a DataLoader worker's thread that hands descriptors of shared memory to the rank."""
_OPERATION, _TIMEOUT = 2, 4
"""Positions of the arguments of `futex` in /proc's text, after the call's number and the address."""
_PRIVATE: Final = 128
_OPTIONS: Final = _PRIVATE | 256
"""`FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME` of linux/futex.h."""
_WAITS: Final = frozenset({0, 9})
"""`FUTEX_WAIT` and `FUTEX_WAIT_BITSET`."""


@dataclass(frozen=True, slots=True)
class LockWait:
    """A process in which all threads wait for locks of the process itself.

    Attributes:
        pid: Process id.
        arguments: System calls of its threads, to distinguish one wait from the next.
        since_ns: Monotonic time at which its last thread ran; None if the kernel does not show it.
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
        pid: Process id.
        parent: Pid of its parent.
        now_ns: The monotonic clock now.
    """
    threads = [int(thread) for thread in threads_of(pid)]
    is_loader = name_of(pid) == LOADER_THREAD
    if not 0 < len(threads) <= MAX_THREADS:
        return None
    calls = {thread: call_of(Path(f"/proc/{pid}/task/{thread}")) for thread in threads}
    if pid not in calls or not waits_for_own_lock(calls[pid]):
        return None
    if not all(waits_for_own_lock(call) or (is_loader and call.name in _ACCEPTS) for call in calls.values()):
        return None
    state = process_state(pid)
    last_runs_ns = [on_processor_ns(pid, now_ns, thread) for thread in threads]
    known_ns = [last_ns for last_ns in last_runs_ns if last_ns is not None]
    # The kernel has one clock per processor, and a hypervisor may take time from one processor only: times of threads
    # on different processors are then off. None of them can be before the start of the process.
    earliest_ns = now_ns - _age_ns(state[1]) if state is not None else 0
    return LockWait(
        pid=pid,
        arguments="; ".join(call.arguments for call in calls.values()),
        since_ns=max(earliest_ns, *known_ns) if len(known_ns) == len(last_runs_ns) else None,
        is_loader=is_loader,
        is_forked=_program_of(pid) == _program_of(parent) != b"",
    )


def waits_for_own_lock(call: SystemCall) -> bool:
    """Return whether a thread waits, without a timeout, for a lock that no other process can release."""
    words = call.arguments.split()
    if call.name != "futex" or len(words) <= _TIMEOUT:
        return False
    operation, timeout = int(words[_OPERATION], 16), int(words[_TIMEOUT], 16)
    return bool(operation & _PRIVATE) and operation & ~_OPTIONS in _WAITS and not timeout


def _program_of(pid: int) -> bytes:
    try:
        return os.readlink(f"/proc/{pid}/exe").encode() + Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
