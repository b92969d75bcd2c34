"""Processes around a rank: the one that started it, and those that have the job's standard error open."""

from __future__ import annotations

import contextlib
import errno
import functools
import multiprocessing
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.directory import is_tape_name, job_directories, tapes_in
from otel_torchdist.system.files.locks import is_locked_elsewhere
from otel_torchdist.tape.identity import TapeIdentity, decode_identity, process_start_ticks, shares_pids, stat_fields
from otel_torchdist.tape.layout import IDENTITY_SIZE

# --- the rank that started this process -------------------------------------------------------------------------------
# Finds the rank that started this process: a process that a rank starts, and that creates its own group, is a helper.
# `torch.distributed.checkpoint.async_save` starts one for each rank: it has the rank's number and job, but another
# store, and it is terminated when the rank ends.


MAX_ANCESTORS: Final = 64
_LEAST_DESCRIPTOR: Final = 32
"""Tapes have higher ones, and to look at each descriptor of a process takes 10 µs."""
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def parent_tape(directory: Path) -> int:
    """Return the nonce of the tape that this process's nearest ancestor writes in a job directory; 0 if none does.

    Must be called before this process has a tape there: opening and closing its own would drop the lock on it.
    """
    found = _nearest(_ancestors(), tapes_in(directory))
    return found[1] if found is not None else 0


def directory_of_parent(base: Path) -> Path | None:
    """Return the job directory of the rank that started this process with `multiprocessing`; None if none did.

    Such a process has the rank's environment except for an address of its own, so its environment names another job.
    """
    if multiprocessing.parent_process() is None:
        return None
    ancestors = _ancestors()
    found = _nearest(ancestors, _tapes_open_in(ancestors, base))
    return found[0] if found is not None else None


def _tapes_open_in(ancestors: Iterable[tuple[int, int]], base: Path) -> Iterable[Path]:
    """Return the tapes that ancestors have open, without a look at the tapes of other jobs.

    Tapes have high descriptors; see `files.kept`.
    """
    found: set[Path] = set()
    for nth, (pid, _) in enumerate(ancestors):
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            if nth:  # a process of another user, such as a service
                continue
            return [tape for directory in job_directories(base) for tape in tapes_in(directory)]
        for descriptor in descriptors:
            if int(descriptor) < _LEAST_DESCRIPTOR:
                continue
            with contextlib.suppress(OSError):
                path = Path(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
                if is_tape_name(path.name):
                    found.add(base / path.parent.name / path.name)
    return found


def _nearest(ancestors: list[tuple[int, int]], tapes: Iterable[Path]) -> tuple[Path, int] | None:
    """Return directory and nonce of the live tape of the nearest ancestor, the newest if it has several."""
    found: list[tuple[int, int, Path, int]] = []
    for path in tapes if ancestors else ():
        identity = _identity_of_live(path)
        if identity is None or not shares_pids(identity):
            continue
        process = identity.pid, identity.pid_start_ticks
        if process in ancestors:
            found.append((ancestors.index(process), -identity.monotonic_ns, path.parent, identity.nonce))
    return min(found)[2:] if found else None


def _identity_of_live(path: Path) -> TapeIdentity | None:
    """Return the identity of a tape's writer; None if the tape cannot be read or its writer is gone."""
    try:
        file = os.open(path, _OPEN_FLAGS)
    except OSError:
        return None
    try:
        return decode_identity(os.pread(file, IDENTITY_SIZE, 0), str(path)) if is_locked_elsewhere(file) else None
    except (OSError, TapeError):
        return None
    finally:
        os.close(file)


def _ancestors() -> list[tuple[int, int]]:
    """Return the ancestors of this process with their start times, nearest first.

    With the start method `forkserver` the parent according to `multiprocessing` is not the kernel's.
    """
    parent = multiprocessing.parent_process()
    named = parent.pid if parent is not None else None
    usual = line_above(os.getpid(), os.getppid())
    if named is None or named == os.getppid():
        return list(usual)
    return list(dict.fromkeys([*line_above(os.getpid(), named), *usual]))


@functools.lru_cache(maxsize=2)
def line_above(pid: int, parent: int) -> tuple[tuple[int, int], ...]:
    """Return the ancestors of a process with their start times in clock ticks, nearest first.

    They are read once for each parent: as long as that lives, the others can only end.

    Args:
        pid: The process; a forked one does not use what its parent has read.
        parent: The nearest ancestor.
    """
    found: list[tuple[int, int]] = []
    with contextlib.suppress(OSError):
        while parent > 0 and len(found) < MAX_ANCESTORS:
            fields = stat_fields(parent)
            found.append((parent, int(fields[19])))
            parent = int(fields[1])
    return tuple(found)


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if there is none, or the process does not exist."""
    try:
        return int(stat_fields(pid)[1])
    except OSError:
        return 0


# --- standard error ---------------------------------------------------------------------------------------------------
# The standard error of a job, as a rank sees it: which file it is, and which processes have it open.
# A rank writes it down beside its tape. An agent opens the file anew when it has something to say; see
# `agent.notices`.


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
