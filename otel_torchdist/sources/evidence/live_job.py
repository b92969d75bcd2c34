"""Inspects all ranks of a live job once, by py-spy and /proc. Nothing is injected into processes."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.model.text import readable
from otel_torchdist.node.processes.cgroups import kills_so_far
from otel_torchdist.node.processes.state import RUNNING, call_of
from otel_torchdist.sources.evidence import live_recorder
from otel_torchdist.sources.evidence.live_ranks import LiveProcess, descendants_of, find_ranks
from otel_torchdist.sources.evidence.statements import Statement
from otel_torchdist.sources.evidence.texts import py_spy

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
    """The state of a process in /proc.

    Attributes:
        state: State letter of its main thread; '' if the process is gone.
        waits_in: The kernel function in which its main thread sleeps, or ''.
        call: The system call of its main thread; `running` outside of system calls; '' if unknown.
        threads: Number of threads.
        running: Number of threads that run or wait for a core.
        children: Number of child processes.
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
        """The state in a few words."""
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


def kernel_view_of(pid: int) -> KernelView:
    """Return the state of a process. Fields that may not be read are left empty."""
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
    function = _read(folder / "wchan").strip()
    return "" if function == "0" else readable(function)


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


@dataclass(frozen=True, slots=True)
class LiveRank:
    """A process of a live job, with its stacks and its state.

    Attributes:
        kernel: Its state in /proc.
        stacks: Its stacks; None if they could not be taken.
    """

    process: LiveProcess
    kernel: KernelView
    stacks: Statement | None


@dataclass(frozen=True, slots=True)
class LiveJob:
    """The state of a live job.

    Attributes:
        ranks: By ascending rank; processes of unknown rank last.
        dumps: Paths of flight recorder dumps that the ranks have written.
        answers: Flight recorder contents from the debug server, as JSON by rank.
        requested_ns: Time of the request to the debug server, in nanoseconds since the epoch.
        warnings: A line for each failure to inspect.
    """

    ranks: tuple[LiveRank, ...]
    dumps: tuple[Path, ...]
    answers: Mapping[int, bytes]
    requested_ns: int
    warnings: tuple[str, ...]

    @property
    def world_size(self) -> int:
        """Number of the job's ranks; 0 if unknown."""
        return max((rank.process.world_size for rank in self.ranks), default=0)

    @property
    def ranks_elsewhere(self) -> tuple[int, ...]:
        """Ranks of the job without a process in `ranks`, ascending."""
        seen = {rank.process.rank for rank in self.ranks}
        return tuple(rank for rank in range(self.world_size) if rank not in seen)

    @property
    def statements(self) -> list[Statement]:
        """The stacks, with their ranks."""
        return [rank.stacks for rank in self.ranks if rank.stacks is not None]


def inspect_job(pids: Iterable[int], asks_for_dumps: bool = False) -> LiveJob:
    """Inspect the ranks among these processes and their descendants.

    Args:
        pids: Processes of this node.
        asks_for_dumps: Whether to request flight recorder dumps from ranks with a pipe.
    """
    processes, warnings = find_ranks(pids)
    program = py_spy.program()
    if program is None and processes:
        warnings.append("py-spy is not installed, so there are no stacks; `pip install py-spy` adds them")
    ranks: list[LiveRank] = []
    for process in processes:
        stacks: Statement | None = None
        if program is not None:
            stacks, reason = py_spy.dump(program, process.pid)
            if stacks is None:
                warnings.append(f"no stacks of process {process.pid}: py-spy: {reason}")
            else:
                stacks = dataclasses.replace(stacks, rank=process.rank, local_rank=process.local_rank)
        ranks.append(LiveRank(process, kernel_view_of(process.pid), stacks))
    answers: Mapping[int, bytes] = {}
    requested_ns = time.time_ns()
    if live_recorder.has_debug_server(
        [*processes, *(child for process in processes for child in descendants_of(process.pid))]
    ):
        answers, problem = live_recorder.ask_debug_server()
        warnings += [problem] if problem else []
    dumps: list[Path] = []
    if asks_for_dumps:
        dumps, problems = live_recorder.request_dumps(processes)
        warnings += problems
    written = [path for process in processes for path in live_recorder.dumps_of(process)]
    return LiveJob(tuple(ranks), tuple(dict.fromkeys([*dumps, *written])), answers, requested_ns, tuple(warnings))
