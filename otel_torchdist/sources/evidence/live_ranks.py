"""Finds ranks from a user's process ids: a rank, one of its helpers, or its launcher.

torchrun, Accelerate, Lightning and Slurm's recipes set `RANK` in the environment before they execute a rank. Its
children, such as DataLoader workers, inherit it. `mp.spawn` sets it after the start, which /proc/PID/environ does not
show.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.model.text import readable
from otel_torchdist.node.processes.endings import MAX_ENVIRONMENT

MAX_PROCESSES: Final = 4_096
MAX_DEPTH: Final = 16
"""Upper bound on the generations of descendants."""
_PROC: Final = Path("/proc")
_RANKS: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
KEPT_VARIABLES: Final = frozenset(
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
"""Environment variables that are read. Others may hold secrets."""


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """A process of a job.

    Attributes:
        pid: Process id.
        parent: Process id of its parent.
        command: Its command line; '' for a kernel thread or a zombie.
        rank: Global rank; None if its environment does not state one.
        local_rank: Rank on this node; None if unknown.
        world_size: Ranks of the job; 0 if unknown.
        variables: The variables of its environment in `KEPT_VARIABLES`; empty if it cannot be read.
    """

    pid: int
    parent: int
    command: str
    rank: int | None = None
    local_rank: int | None = None
    world_size: int = 0
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


def find_ranks(pids: Iterable[int]) -> tuple[list[LiveProcess], list[str]]:
    """Return the ranks among these processes, their ancestors and their descendants.

    Returns:
        The processes by ascending rank, with unknown ranks last; and a line for each unusable pid.
    """
    parents = _parents()
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    ranks: dict[int, LiveProcess] = {}
    problems: list[str] = []
    for pid in dict.fromkeys(pids):
        problem = _refusal(pid, parents)
        if problem:
            problems.append(problem)
            continue
        for process in _ranks_near(pid, parents, children):
            ranks[process.pid] = process
    by_rank = sorted(ranks.values(), key=lambda process: (process.rank is None, process.rank or 0, process.pid))
    return by_rank, problems


def descendants_of(pid: int) -> list[LiveProcess]:
    """Return all descendants of a process."""
    parents = _parents()
    pids = [pid]
    for _ in range(MAX_DEPTH):
        children = [child for child, parent in parents.items() if parent in pids and child not in pids]
        if not children:
            break
        pids += children
    return [_process(descendant, parents) for descendant in pids[1:]]


def _refusal(pid: int, parents: Mapping[int, int]) -> str:
    try:
        owner = os.stat(_PROC / str(pid)).st_uid
    except OSError:
        return f"process {pid} does not exist"
    if owner != os.geteuid() and os.geteuid() != 0:
        return f"process {pid} belongs to user {owner}; run this as that user, or as root"
    return "" if pid in parents else f"process {pid} does not exist"


def _ranks_near(pid: int, parents: Mapping[int, int], children: Mapping[int, list[int]]) -> list[LiveProcess]:
    """Return the rank that a process belongs to; of a launcher, the ranks below it."""
    process = _process(pid, parents)
    if process.rank is not None:
        return [_topmost(process, parents)]
    descendants: list[LiveProcess] = []
    unvisited = list(children.get(pid, ()))
    while unvisited and len(descendants) < MAX_PROCESSES:
        child = _process(unvisited.pop(0), parents)
        descendants.append(child)
        if child.rank is None:
            unvisited += children.get(child.pid, ())
    ranks = [child for child in descendants if child.rank is not None]
    # Without any `RANK`, a launcher cannot be distinguished from a rank with helpers: return all.
    return ranks or [process, *(child for child in descendants if child.parent == pid and "python" in child.command)]


def _topmost(process: LiveProcess, parents: Mapping[int, int]) -> LiveProcess:
    """Return the rank that a process belongs to: its topmost ancestor with the same rank."""
    parent = parents.get(process.parent)
    if parent is None:
        return process
    ancestor = _process(process.parent, parents)
    return (
        _topmost(ancestor, parents)
        if ancestor.rank == process.rank and ancestor.local_rank == process.local_rank
        else process
    )


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in os.listdir(_PROC):
        if entry.isdecimal():
            try:
                stat = (_PROC / entry / "stat").read_bytes()
            except OSError:
                continue
            parents[int(entry)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return parents


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
    """Return the command line of a process; '' if it cannot be read."""
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
    return {name: value for name, value in named if name in KEPT_VARIABLES}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 10 else None
