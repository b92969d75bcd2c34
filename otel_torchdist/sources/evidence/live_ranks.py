"""Finds the ranks among processes that a user names: a rank itself, one of its helpers, or its launcher.

torchrun, Accelerate, Lightning and Slurm's recipes put `RANK` into the environment with which a rank is executed. Its
children, such as DataLoader workers, inherit it. `mp.spawn` sets it later, where the kernel does not show it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.model.naming import readable
from otel_torchdist.node.processes.endings import MAX_ENVIRONMENT

MAX_PROCESSES: Final = 4_096
MAX_DEPTH: Final = 16
_PROC: Final = Path("/proc")
_RANKS: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
KEPT: Final = frozenset(
    {
        *_RANKS,
        "LOCAL_RANK",
        "WORLD_SIZE",
        "XDG_CACHE_HOME",
        "HOME",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_FR_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCHELASTIC_ERROR_FILE",
    }
)
"""Variables that are kept; others may hold secrets."""


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """A process of a job.

    Attributes:
        pid: Its id.
        parent: Its parent's.
        command: Its command line; '' for a kernel thread or a zombie.
        rank: Its global rank; None if its environment does not show one.
        local_rank: Its rank on this node; None if unknown.
        world_size: Ranks of the job; 0 if unknown.
        variables: Those of its environment that are in `KEPT`; empty if it cannot be read.
    """

    pid: int
    parent: int
    command: str
    rank: int | None = None
    local_rank: int | None = None
    world_size: int = 0
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


def find_ranks(pids: Iterable[int]) -> tuple[list[LiveProcess], list[str]]:
    """Return the ranks that these processes are, belong to, or have started.

    Returns:
        The processes by ascending rank, those of unknown rank last; and a line for each pid that led to none.
    """
    parents = _parents()
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, LiveProcess] = {}
    problems: list[str] = []
    for pid in dict.fromkeys(pids):
        problem = _refusal(pid, parents)
        if problem:
            problems.append(problem)
            continue
        for process in _from(pid, parents, children):
            found[process.pid] = process
    return sorted(found.values(), key=lambda one: (one.rank is None, one.rank or 0, one.pid)), problems


def below(pid: int) -> list[LiveProcess]:
    """Return all processes that a process has started, directly or not."""
    parents = _parents()
    found = [pid]
    for _ in range(MAX_DEPTH):
        more = [child for child, parent in parents.items() if parent in found and child not in found]
        if not more:
            break
        found += more
    return [_process(one, parents) for one in found[1:]]


def _refusal(pid: int, parents: Mapping[int, int]) -> str:
    try:
        owner = os.stat(_PROC / str(pid)).st_uid
    except OSError:
        return f"process {pid} does not exist"
    if owner != os.geteuid() and os.geteuid() != 0:
        return f"process {pid} belongs to user {owner}; run this as that user, or as root"
    return "" if pid in parents else f"process {pid} does not exist"


def _from(pid: int, parents: Mapping[int, int], children: Mapping[int, list[int]]) -> list[LiveProcess]:
    own = _process(pid, parents)
    if own.rank is not None:
        return [_eldest(own, parents)]
    below: list[LiveProcess] = []
    waiting = list(children.get(pid, ()))
    while waiting and len(below) < MAX_PROCESSES:
        child = _process(waiting.pop(0), parents)
        below.append(child)
        if child.rank is None:
            waiting += children.get(child.pid, ())
    ranks = [child for child in below if child.rank is not None]
    # Without any `RANK`, a launcher cannot be distinguished from a rank that has helpers: show what there is.
    return ranks or [own, *(child for child in below if child.parent == pid and "python" in child.command)]


def _eldest(process: LiveProcess, parents: Mapping[int, int]) -> LiveProcess:
    """Return the rank that a process belongs to: the topmost of its ancestors with the same rank."""
    parent = parents.get(process.parent)
    if parent is None:
        return process
    above = _process(process.parent, parents)
    return _eldest(above, parents) if above.rank == process.rank and above.local_rank == process.local_rank else process


def _parents() -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in os.listdir(_PROC):
        if entry.isdecimal():
            try:
                stat = (_PROC / entry / "stat").read_bytes()
            except OSError:
                continue
            found[int(entry)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return found


def _process(pid: int, parents: Mapping[int, int]) -> LiveProcess:
    variables = _variables(pid)
    rank = next((number for name in _RANKS if (number := _number(variables.get(name))) is not None), None)
    return LiveProcess(
        pid=pid,
        parent=parents.get(pid, 0),
        command=command_of(pid),
        rank=rank,
        local_rank=_number(variables.get("LOCAL_RANK")),
        world_size=_number(variables.get("WORLD_SIZE")) or 0,
        variables=variables,
    )


def command_of(pid: int) -> str:
    """Return how a process was started; '' if that cannot be read."""
    try:
        content = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return readable(content.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "surrogateescape"))


def _variables(pid: int) -> dict[str, str]:
    try:
        with (_PROC / str(pid) / "environ").open("rb") as stream:
            content = stream.read(MAX_ENVIRONMENT)
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in content.split(b"\0"))
    named = ((os.fsdecode(name), os.fsdecode(value)) for name, _, value in pairs)
    return {name: value for name, value in named if name in KEPT}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 10 else None
