"""Finds the rank that started this process: a process that a rank starts, and that creates its own group, is a helper.

`torch.distributed.checkpoint.async_save` starts one for each rank: it has the rank's number and job, but another store,
and it is terminated when the rank ends.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.files.locks import is_locked_elsewhere
from otel_torchdist.job.directory import job_directories, tapes_in
from otel_torchdist.tape.identity import TapeIdentity, decode_identity, process_start_ticks, shares_pids, stat_fields
from otel_torchdist.tape.layout import IDENTITY_SIZE

MAX_ANCESTORS: Final = 64
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def parent_tape(directory: Path) -> int:
    """Return the nonce of the tape that this process's nearest ancestor writes in a job directory; 0 if none does.

    Must be called before this process has a tape there: opening and closing its own would drop the lock on it.
    """
    found = _nearest([directory])
    return found[1] if found is not None else 0


def directory_of_parent(base: Path) -> Path | None:
    """Return the job directory of the rank that started this process with `multiprocessing`; None if none did.

    Such a process has the rank's environment except for an address of its own, so its environment names another job.
    """
    if multiprocessing.parent_process() is None:
        return None
    found = _nearest(job_directories(base))
    return found[0] if found is not None else None


def _nearest(directories: Iterable[Path]) -> tuple[Path, int] | None:
    ancestors = _ancestors()
    if not ancestors:
        return None
    found: list[tuple[int, int, Path, int]] = []
    for directory in directories:
        for path in tapes_in(directory):
            identity = _identity_of_live(path)
            if identity is None or not shares_pids(identity):
                continue
            process = identity.pid, identity.pid_start_ticks
            if process in ancestors:
                found.append((ancestors.index(process), -identity.monotonic_ns, directory, identity.nonce))
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
    named = multiprocessing.parent_process()
    lines = [_line_from(named.pid)] if named is not None and named.pid is not None else []
    lines.append(_line_from(os.getppid()))
    return list(dict.fromkeys(process for line in lines for process in line))


def _line_from(pid: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while pid > 0 and len(found) < MAX_ANCESTORS:
        ticks = process_start_ticks(pid)
        if ticks is None:
            break
        found.append((pid, ticks))
        pid = parent_of(pid)
    return found


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if there is none, or the process does not exist."""
    try:
        return int(stat_fields(pid)[1])
    except OSError:
        return 0
