"""Which jobs of this user have live ranks on this node."""

from __future__ import annotations

import os
from pathlib import Path

from otel_torchdist.tape.directory import job_directories, tapes_in
from otel_torchdist.tape.locks import is_locked_elsewhere


def live_jobs(base: Path) -> list[Path]:
    """The job directories in which a rank lives."""
    return [directory for directory in job_directories(base) if _newest_live_tape_ns(directory)]


def newest_live_job(base: Path) -> Path | None:
    """The job directory in which a rank that lives began its tape last; None when no rank lives."""
    begun = {directory: _newest_live_tape_ns(directory) for directory in job_directories(base)}
    live = [directory for directory, began_ns in begun.items() if began_ns]
    return max(live, key=lambda directory: begun[directory], default=None)


def _newest_live_tape_ns(directory: Path) -> int:
    return max((_begun_ns(path) for path in tapes_in(directory)), default=0)


def _begun_ns(path: Path) -> int:
    """When a tape was created, as far as the file system tells; 0 when its writer is gone."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        # What a writer stores through its mapping need not show in the time of the last change.
        return os.fstat(file).st_mtime_ns if is_locked_elsewhere(file) else 0
    finally:
        os.close(file)
