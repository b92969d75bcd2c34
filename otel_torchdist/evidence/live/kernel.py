"""What the kernel shows of a process: whether it runs, what it waits for, and whether memory ran out around it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.naming import readable
from otel_torchdist.processes.oom_kills import kills_so_far
from otel_torchdist.processes.system_calls import RUNNING, call_of

_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep",
    "T": "stopped by a signal",
    "t": "held by a debugger",
    "Z": "dead, and not yet collected by its parent",
    "X": "dead",
    "I": "idle",
}


@dataclass(frozen=True, slots=True)
class KernelView:
    """One process.

    Attributes:
        state: State letter of its main thread; '' if it is gone.
        waits_in: The kernel function in which its main thread sleeps, or ''.
        call: The system call that its main thread is in, or ''; `running` if it is in none.
        threads: How many threads it has.
        running: How many of them run, or wait for a core.
        children: How many child processes it has.
        oom_kills: Out-of-memory kills in its cgroup so far; None if the kernel does not report them.
    """

    state: str
    waits_in: str
    call: str
    threads: int
    running: int
    children: int
    oom_kills: int | None

    @property
    def text(self) -> str:
        """The view in a few words."""
        if not self.state:
            return "gone"
        parts = [_STATES.get(self.state, self.state)]
        if self.call and self.call != RUNNING:
            parts.append(f"in {self.call}")
        if self.waits_in:
            parts.append(f"waits in {self.waits_in}")
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        parts.append(f"{threads}, {self.running} of them running")
        if self.children:
            parts.append("1 child" if self.children == 1 else f"{self.children} children")
        if self.oom_kills:
            parts.append(f"{self.oom_kills} out-of-memory kills in its cgroup")
        return ", ".join(parts)


def view_of(pid: int) -> KernelView:
    """Look at a process; what may not be read is left empty."""
    folder = Path(f"/proc/{pid}")
    states = [_state(task) for task in _listed(folder / "task")]
    children = sum(len(_read(task / "children").split()) for task in _listed(folder / "task"))
    return KernelView(
        state=_state(folder),
        waits_in=_wait_channel(folder),
        call=call_of(folder).name,
        threads=len(states),
        running=states.count("R"),
        children=children,
        oom_kills=kills_so_far(pid),
    )


def _state(folder: Path) -> str:
    stat = _read(folder / "stat")
    return stat[stat.rfind(")") + 2 :][:1]


def _wait_channel(folder: Path) -> str:
    found = _read(folder / "wchan").strip()
    return "" if found == "0" else readable(found)


def _listed(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
