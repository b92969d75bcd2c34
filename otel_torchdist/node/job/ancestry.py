"""Finds the processes around a rank: the rank that started it, and the holders of the job's standard error."""

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
# Finds the rank that started this process. A process that a rank starts, and that creates its own group, is a helper.
# `torch.distributed.checkpoint.async_save` starts a helper for each rank: it has the rank's number and job, but another
# store, and it is terminated when the rank ends.


MAX_ANCESTORS: Final = 64
_MIN_DESCRIPTOR: Final = 32
"""Lowest descriptor of a tape. Lower descriptors are skipped: reading one takes 10 µs."""
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def parent_tape(directory: Path) -> int:
    """Return the nonce of the nearest ancestor's tape in a job directory; 0 if no ancestor has one.

    Call this before this process has a tape there: opening and closing its own tape would release the lock on it.
    """
    nearest = _nearest(_ancestors(), tapes_in(directory))
    return nearest[1] if nearest is not None else 0


def directory_of_parent(base: Path) -> Path | None:
    """Return the job directory of the rank that started this process with `multiprocessing`; None if no rank did.

    Such a process has the rank's environment with another master address, from which a different job would be derived.
    """
    if multiprocessing.parent_process() is None:
        return None
    ancestors = _ancestors()
    nearest = _nearest(ancestors, _tapes_open_in(ancestors, base))
    return nearest[0] if nearest is not None else None


def _tapes_open_in(ancestors: Iterable[tuple[int, int]], base: Path) -> Iterable[Path]:
    """Return the tapes that ancestors have open, without opening the tapes of other jobs.

    Tapes have high descriptors; see `files.kept`.
    """
    tapes: set[Path] = set()
    for index, (pid, _) in enumerate(ancestors):
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            if index:  # not the parent: a process of another user, such as a service
                continue
            return [tape for directory in job_directories(base) for tape in tapes_in(directory)]
        for descriptor in descriptors:
            if int(descriptor) < _MIN_DESCRIPTOR:
                continue
            with contextlib.suppress(OSError):
                path = Path(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
                if is_tape_name(path.name):
                    tapes.add(base / path.parent.name / path.name)
    return tapes


def _nearest(ancestors: list[tuple[int, int]], tapes: Iterable[Path]) -> tuple[Path, int] | None:
    """Return directory and nonce of the nearest ancestor's live tape; the newest if it has several."""
    candidates: list[tuple[int, int, Path, int]] = []
    for path in tapes if ancestors else ():
        identity = _identity_of_live(path)
        if identity is None or not shares_pids(identity):
            continue
        process = identity.pid, identity.pid_start_ticks
        if process in ancestors:
            candidates.append((ancestors.index(process), -identity.monotonic_ns, path.parent, identity.nonce))
    return min(candidates)[2:] if candidates else None


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
    """Return the ancestors of this process with their start times in clock ticks, nearest first.

    With the start method `forkserver`, `multiprocessing` and the kernel name different parents.
    """
    parent = multiprocessing.parent_process()
    logical_parent = parent.pid if parent is not None else None
    kernel_ancestors = ancestors_from(os.getpid(), os.getppid())
    if logical_parent is None or logical_parent == os.getppid():
        return list(kernel_ancestors)
    return list(dict.fromkeys([*ancestors_from(os.getpid(), logical_parent), *kernel_ancestors]))


@functools.lru_cache(maxsize=2)
def ancestors_from(pid: int, parent: int) -> tuple[tuple[int, int], ...]:
    """Return the ancestors of a process with their start times in clock ticks, nearest first.

    Cached for each parent: while it lives, its ancestors can only end.

    Args:
        pid: The process; part of the cache key, so that a forked process does not use its parent's entry.
        parent: The nearest ancestor.
    """
    ancestors: list[tuple[int, int]] = []
    with contextlib.suppress(OSError):
        while parent > 0 and len(ancestors) < MAX_ANCESTORS:
            fields = stat_fields(parent)
            ancestors.append((parent, int(fields[19])))
            parent = int(fields[1])
    return tuple(ancestors)


def parent_of(pid: int) -> int:
    """Return the parent pid of a process; 0 if it has none or does not exist."""
    try:
        return int(stat_fields(pid)[1])
    except OSError:
        return 0


# --- standard error ---------------------------------------------------------------------------------------------------
# The standard error of a job, as a rank sees it: the file, and the processes that have it open.
# A rank writes this beside its tape. The agent opens the file again for each notice; see `agent.notices`.


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
        holders: Pid and start time in clock ticks of the processes with this file as descriptor 2: the rank and its
            ancestors, nearest first.
    """

    device: int
    inode: int
    path: str
    holders: tuple[tuple[int, int], ...]


def find_standard_error(environ: Mapping[str, str]) -> StandardError | None:
    """Return the standard error of this rank's job; None if there is none, or `/proc` hides it.

    Under torchrun it is the standard error of torchrun, because `--redirects` may send that of each rank to a separate
    file. Otherwise it is the rank's: users do not see the standard error of mpirun's and srun's daemons.

    Args:
        environ: The environment of this process.
    """
    if sys.__stderr__ is None:  # closed at the start: descriptor 2 may be any other file by now
        return None
    processes = _this_process_and_ancestors()
    launcher = processes[1:] if _ELASTIC in environ else []
    for pid, _ in (*launcher[:1], *processes[:1]):
        with contextlib.suppress(OSError):
            info = os.stat(descriptor_path(pid))
            if open_flags(pid, STDERR) & os.O_ACCMODE == os.O_RDONLY:
                return None
            holders = tuple(process for process in processes if _has_open(process[0], info))
            return StandardError(info.st_dev, info.st_ino, os.readlink(descriptor_path(pid)), holders)
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


def _has_open(pid: int, info: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(descriptor_path(pid)), info)
    except OSError:
        return False


def _this_process_and_ancestors() -> list[tuple[int, int]]:
    """Return this process and its ancestors, nearest first, with their start times in clock ticks."""
    ticks = process_start_ticks(os.getpid())
    return [] if ticks is None else [(os.getpid(), ticks), *ancestors_from(os.getpid(), os.getppid())][:MAX_HOLDERS]
