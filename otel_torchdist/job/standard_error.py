"""The standard error of a job, as a rank sees it: which file it is, and which processes have it open.

A rank writes it down beside its tape. An agent opens the file anew when it has something to say; see
`processes.reopened_stderr`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.job.ancestry import line_above
from otel_torchdist.tape.identity import process_start_ticks

STDERR: Final = 2
MAX_HOLDERS: Final = 8
_ELASTIC: Final = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True, slots=True)
class StandardError:
    """The file behind descriptor 2.

    Attributes:
        device: Device number of the file.
        inode: Inode of the file.
        path: Its name in `/proc`: a path, or `pipe:[4711]`.
        holders: Processes with this file as descriptor 2, each with its start time in clock ticks: the rank and its
            ancestors, nearest first.
    """

    device: int
    inode: int
    path: str
    holders: tuple[tuple[int, int], ...]


def find_standard_error(environ: Mapping[str, str]) -> StandardError | None:
    """Find the standard error of the job that this process is a rank of; None if there is none, or `/proc` hides it.

    torchrun may redirect each rank to a file of its own (`--redirects`): people look at what torchrun itself writes
    to. The daemons of mpirun and srun have no stderr that a person sees: there it is that of the rank.

    Args:
        environ: The environment of this process.
    """
    if sys.__stderr__ is None:  # closed: descriptor 2 is whatever the program has opened since
        return None
    line = _line_of_this_process()
    launcher = line[1:] if _ELASTIC in environ else []
    for pid, _ in (*launcher[:1], *line[:1]):
        with contextlib.suppress(OSError):
            facts = os.stat(descriptor_path(pid))
            if open_flags(pid, STDERR) & os.O_ACCMODE == os.O_RDONLY:
                return None
            holders = tuple(one for one in line if _has_open(one[0], facts))
            return StandardError(facts.st_dev, facts.st_ino, os.readlink(descriptor_path(pid)), holders)
    return None


def descriptor_path(pid: int, descriptor: int = STDERR) -> str:
    """Return the path by which a descriptor of a process can be opened."""
    return f"/proc/{pid}/fd/{descriptor}"


def open_flags(pid: int, descriptor: int) -> int:
    """Return the flags with which a process has a file open.

    Raises:
        OSError: The process or the descriptor is gone, or `/proc` does not show it.
    """
    with open(f"/proc/{pid}/fdinfo/{descriptor}") as lines:
        for line in lines:
            if line.startswith("flags:"):
                return int(line.split()[1], 8)
    raise OSError(errno.ENOENT, f"descriptor {descriptor} of process {pid} has no flags")


def _has_open(pid: int, facts: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(descriptor_path(pid)), facts)
    except OSError:
        return False


def _line_of_this_process() -> list[tuple[int, int]]:
    """Return this process and its ancestors, nearest first, with their start times."""
    ticks = process_start_ticks(os.getpid())
    return [] if ticks is None else [(os.getpid(), ticks), *line_above(os.getpid(), os.getppid())][:MAX_HOLDERS]
