"""Finds the jobs with live ranks on this node."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.files.locks import is_locked_elsewhere
from otel_torchdist.files.others import is_passing, open_regular
from otel_torchdist.job.directory import job_directories, list_jobs, list_tapes, tapes_in

MAX_TAPES: Final = 4096
"""Tapes checked per base directory, so that no user holds up the others."""


@dataclass(frozen=True, slots=True)
class LiveJobs:
    """The result of checking a base directory.

    Attributes:
        live: Job directories with a live rank.
        unseen: Directories that could not be checked, and why; whether a rank lives there is unknown.
        took_s: How long the check of each directory took; that of the base directory includes all in it.
    """

    live: list[Path] = field(default_factory=list[Path])
    unseen: dict[Path, OSError] = field(default_factory=dict[Path, OSError])
    took_s: dict[Path, float] = field(default_factory=dict[Path, float])


def live_jobs(base: Path, without: Collection[Path] = (), most: int = MAX_TAPES) -> LiveJobs:
    """Find the job directories with a live rank.

    Args:
        base: The base directory.
        without: Job directories to leave out.
        most: Tapes that are checked.
    """
    found = LiveJobs()
    began = time.monotonic()
    try:
        directories = [directory for directory in list_jobs(base) if directory not in without]
    except OSError as error:
        found.unseen[base] = error
        return found
    tapes: dict[Path, list[Path]] = {}
    for directory in directories:
        listed_at = time.monotonic()
        try:
            tapes[directory] = list_tapes(directory)
        except OSError as error:
            found.unseen[directory] = error
        found.took_s[directory] = time.monotonic() - listed_at
    left = most
    for directory in sorted(tapes, key=lambda one: len(tapes[one])):  # an overfull one hides only itself
        try:
            if any(map(_is_live, tapes[directory][:left])):
                found.live.append(directory)
            elif len(tapes[directory]) > left:
                found.unseen[directory] = OSError(errno.E2BIG, f"it and those beside it hold more than {most} tapes")
            left = max(left - len(tapes[directory]), 0)
        except OSError as error:
            found.unseen[directory] = error
    found.live.sort()
    found.took_s[base] = time.monotonic() - began
    return found


def newest_live_job(base: Path) -> Path | None:
    """Return the job directory of the live rank whose tape is the newest; None when no rank is alive."""
    begun = {directory: _newest_live_tape_ns(directory) for directory in job_directories(base)}
    live = [directory for directory, began_ns in begun.items() if began_ns]
    return max(live, key=lambda directory: begun[directory], default=None)


def _is_live(path: Path) -> bool:
    """Whether the writer of a tape is alive.

    Raises:
        OSError: That cannot be determined now, but perhaps a little later.
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
    """Return when a tape was created, according to the file system; 0 when its writer is gone.

    Raises:
        OSError: The tape cannot be opened, or is not a regular file.
    """
    file = open_regular(path)
    try:
        # A writer's stores through its mapping need not update the modification time.
        return os.fstat(file).st_mtime_ns if is_locked_elsewhere(file) else 0
    finally:
        os.close(file)
