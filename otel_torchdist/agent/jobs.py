"""Which jobs have live ranks on this node."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.tape.directory import job_directories, list_jobs, list_tapes, tapes_in
from otel_torchdist.tape.locks import is_locked_elsewhere
from otel_torchdist.tape.others_files import is_passing, open_regular

MAX_TAPES: Final = 4096
"""Of one base directory that are looked at, so that no user keeps others waiting."""


@dataclass(frozen=True, slots=True)
class LiveJobs:
    """What a look into a base directory has found.

    Attributes:
        live: Job directories in which a rank lives.
        unseen: Directories that could not be looked into, and why; nobody knows what goes on there.
    """

    live: list[Path] = field(default_factory=list[Path])
    unseen: dict[Path, OSError] = field(default_factory=dict[Path, OSError])


def live_jobs(base: Path) -> LiveJobs:
    """The job directories in which a rank lives."""
    found = LiveJobs()
    try:
        directories = list_jobs(base)
    except OSError as error:
        found.unseen[base] = error
        return found
    left = MAX_TAPES
    for directory in directories:
        try:
            tapes = list_tapes(directory)
            if any(map(_is_live, tapes[:left])):
                found.live.append(directory)
            left = max(left - len(tapes), 0)
        except OSError as error:
            found.unseen[directory] = error
    if not left:
        found.unseen[base] = OSError(errno.E2BIG, f"it holds more than {MAX_TAPES} tapes")
    return found


def newest_live_job(base: Path) -> Path | None:
    """The job directory in which a rank that lives began its tape last; None when no rank lives."""
    begun = {directory: _newest_live_tape_ns(directory) for directory in job_directories(base)}
    live = [directory for directory, began_ns in begun.items() if began_ns]
    return max(live, key=lambda directory: begun[directory], default=None)


def _is_live(path: Path) -> bool:
    """Whether the writer of a tape lives.

    Raises:
        OSError: It cannot be told now, but may be a little later.
    """
    try:
        return _begun_ns(path) > 0
    except OSError as error:
        if is_passing(error):
            raise
        return False


def _newest_live_tape_ns(directory: Path) -> int:
    newest_ns = 0
    for path in tapes_in(directory):
        try:
            newest_ns = max(newest_ns, _begun_ns(path))
        except OSError:
            continue
    return newest_ns


def _begun_ns(path: Path) -> int:
    """When a tape was created, as far as the file system tells; 0 when its writer is gone.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    file = open_regular(path)
    try:
        # What a writer stores through its mapping need not show in the time of the last change.
        return os.fstat(file).st_mtime_ns if is_locked_elsewhere(file) else 0
    finally:
        os.close(file)
