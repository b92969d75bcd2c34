"""What the children of a process are doing: DataLoader workers, checkpoint processes and other helpers of a rank.

Their own files in /proc show it without a debugger: the system call that a process is in, the file that this is about,
and the file system that the file is on. A worker without work waits for a message from its parent, in a pipe.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.model.lives import SLEEPS_UNINTERRUPTIBLY
from otel_torchdist.naming import readable
from otel_torchdist.processes.state import threads_of
from otel_torchdist.processes.system_calls import SystemCall, call_of
from otel_torchdist.tape.identity import process_state

MAX_CHILDREN: Final = 256
MAX_MOUNTS_BYTES: Final = 1 << 20
_NO_FILES: Final = ("pipe:", "anon_inode:", "/dev/", "/proc/", "/memfd:")
_IDLE: Final = frozenset({"", "running", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "futex"})


@dataclass(frozen=True, slots=True)
class ChildView:
    """One child.

    Attributes:
        pid: Its process id.
        state: Its state letter, as in /proc.
        call: The system call that its main thread is in.
        file: The file that this call is about; '' for none.
        mount: The file system that the file is on: `nfs4 at /data`; '' if it is not known.
    """

    pid: int
    state: str
    call: SystemCall
    file: str
    mount: str

    @property
    def is_stuck(self) -> bool:
        """Whether it is in a call about a file, or in a sleep that nothing interrupts: no waiting for work looks so."""
        if self.state == SLEEPS_UNINTERRUPTIBLY:
            return True
        return bool(self.file) and not self.file.startswith(_NO_FILES) and self.call.name not in _IDLE

    @property
    def doing(self) -> str:
        """What it is doing in a few words: `in read() of /data/shard-7 (nfs4 at /data)`."""
        call = f"in {self.call.name}()" if self.call.name not in ("", "running") else ""
        if self.file:
            call += f" of {self.file}" + (f" ({self.mount})" if self.mount else "")
        if self.state == SLEEPS_UNINTERRUPTIBLY:
            return f"{call or 'in the kernel'}, in uninterruptible sleep"
        return call or ("running" if self.state == "R" else f"in state {self.state or 'unknown'}")


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, in the order in which they were started."""
    found: list[int] = []
    for thread in threads_of(pid):
        with contextlib.suppress(OSError, ValueError):  # a thread that has just ended
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    started = {child: state[1] for child in found if (state := process_state(child)) is not None}
    return sorted(started, key=lambda child: (started[child], child))[:MAX_CHILDREN]


def look_at(pid: int) -> ChildView | None:
    """Look at a child; None if it is gone."""
    state = process_state(pid)
    if state is None:
        return None
    folder = Path(f"/proc/{pid}")
    call = call_of(folder)
    file = _file_of(folder, call.descriptor) if call.descriptor >= 0 else ""
    return ChildView(pid, state[0], call, readable(file), readable(_mount_of(folder, file)))


@dataclass(frozen=True, slots=True)
class Command:
    """A program that a process has started, as `subprocess` does.

    Attributes:
        pid: Its process id.
        name: The name of the program.
        age_ns: How long ago it was started.
    """

    pid: int
    name: str
    age_ns: int


def command_of(pid: int, parent: int) -> Command | None:
    """Return the program that a child runs; None if it is a worker that runs the parent's own, or has ended."""
    state = process_state(pid)
    try:
        arguments, own = (Path(f"/proc/{one}/cmdline").read_bytes() for one in (pid, parent))
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return None
    if state is None or state[0] == "Z" or arguments == own or b"multiprocessing" in arguments:
        return None
    started_ns = state[1] * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return Command(pid, readable(name), max(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns, 0))


def on_processor_ns(pid: int, now_ns: int, thread: int = 0) -> int | None:
    """Return when a process's thread last ran, on the monotonic clock; None if the kernel does not show it.

    That is since when it has been in the system call that it is in, up to the time that the call took to block. The
    kernel's own clock for this differs from the monotonic one; this process, which is running, shows by how much.

    Args:
        pid: The process.
        now_ns: The monotonic clock now.
        thread: The thread; 0 for the main thread.
    """
    theirs, ours = _exec_start_ns(f"/proc/{pid}/task/{thread or pid}/sched"), _exec_start_ns("/proc/thread-self/sched")
    read_ns = time.monotonic_ns()  # later than `now_ns` by any time that this process has waited for a core
    return None if theirs is None or ours is None else min(now_ns, read_ns - max(ours - theirs, 0))


def _exec_start_ns(file: str) -> int | None:
    try:
        lines = Path(file).read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    found = next((line.rpartition(":")[2] for line in lines if line.startswith("se.exec_start")), "")
    try:
        return round(float(found) * 1e6)
    except ValueError:
        return None


def _file_of(process: Path, descriptor: int) -> str:
    try:
        return os.readlink(process / "fd" / str(descriptor))
    except OSError:
        return ""


def _mount_of(process: Path, file: str) -> str:
    """The file system that a file is on, by the longest mount point that it begins with."""
    if not file.startswith("/") or file.startswith(_NO_FILES):
        return ""
    try:
        with open(process / "mountinfo", encoding="utf-8", errors="replace") as stream:
            lines = stream.read(MAX_MOUNTS_BYTES).splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = fields.split(" ")[4] if fields.count(" ") >= 4 else ""
        is_above = point == "/" or file == point or file.startswith(f"{point}/")
        if point and is_above and len(point) >= len(best):
            best, kind = point, rest.partition(" ")[0]
    return f"{kind} at {best}" if best else ""
