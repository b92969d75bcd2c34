"""The tapes of a job directory as they appear, and the lock that decides which process reads them."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.model.naming import readable
from otel_torchdist.node.job.directory import LOCK_NAME, job_directories, list_jobs, list_tapes, tapes_in
from otel_torchdist.system.files.kept import KeptDescriptor
from otel_torchdist.system.files.locks import is_locked_elsewhere, try_lock, unlock
from otel_torchdist.system.files.others import is_passing, open_regular, reason
from otel_torchdist.system.files.owned import open_or_create
from otel_torchdist.tape.reading.reader import TapeReader

MAX_WARNINGS: Final = 16
"""Warnings about the tapes of one directory, in which its owner may create more of them without end."""
MAX_OPENED: Final = 1024

_logger = logging.getLogger("otel_torchdist")


class LocalTapes:
    """The tapes of one job directory.

    A process never opens its own tapes: closing a second descriptor would drop the lock that marks it as alive.
    """

    def __init__(self, directory: Path, owner: int | None = None, most_opened: int = MAX_OPENED) -> None:
        """Know no tape yet.

        Args:
            directory: The job directory.
            owner: The user who must own it and its tapes; if None, tapes may also be this process's user's.
            most_opened: Tapes opened per call; the next call opens the others.
        """
        self._most_opened = most_opened
        self._directory = directory
        self._owner = owner
        self._seen: set[Path] = set()
        self._warnings = 0
        self._is_hindered = False

    def own(self, path: Path) -> None:
        """Leave out a tape that this process writes itself."""
        self._seen.add(path)

    def new(self, only_alive: bool, most: int | None = None) -> list[TapeReader]:
        """Open tapes that have appeared since the last call; warns once about each that is unreadable or a copy.

        Tapes that cannot be opened for a transient reason, such as a lack of descriptors, are retried at the next call.

        Args:
            only_alive: Leave out tapes whose writer is gone: they belong to earlier runs.
            most: How many to open; None for all.
        """
        try:
            there = list_tapes(self._directory, self._owner)
        except OSError as error:
            self._hindered(f"its tapes cannot be listed: {reason(error)}")
            return []
        self._seen.intersection_update(there)
        waiting = [path for path in there if path not in self._seen][: self._most_opened]
        found: list[TapeReader] = []
        for place, path in enumerate(waiting):
            if most is not None and len(found) >= most:
                left = len(waiting) - place
                self._hindered(f"{left} of its tapes are not read: {TOO_FEW}")
                return found
            try:
                tape = self._opened(path, only_alive)
            except TapeError as error:
                cause = error.__cause__
                if isinstance(cause, OSError) and is_passing(cause):
                    self._hindered(f"a tape cannot be read for now: {error}")
                    return found
                self._seen.add(path)
                self.warn("a tape cannot be read: %s", error)
                continue
            self._seen.add(path)
            if tape is not None:
                found.append(tape)
        self._is_hindered = False
        return found

    def _opened(self, path: Path, only_alive: bool) -> TapeReader | None:
        """Open a tape; None when it is to be left out."""
        tape = TapeReader(path, self._owner)
        own_name = f"{tape.identity.nonce:016x}.tape"
        if path.name != own_name:  # its spans would appear twice, and its rank would seem to be dead
            self.warn("%s is ignored: it is a copy of %s", readable(str(path)), own_name)
        elif not only_alive or tape.is_alive():
            return tape
        tape.close()
        return None

    def warn(self, text: str, *values: object) -> None:
        """Log what is wrong in this directory, at most `MAX_WARNINGS` times: its owner can cause it again and again."""
        self._warnings += 1
        if self._warnings <= MAX_WARNINGS:
            _logger.warning(text, *values)
        if self._warnings == MAX_WARNINGS:
            _logger.warning("%s: further problems with its tapes are not logged", self._directory)

    def _hindered(self, why: str) -> None:
        """Log an obstacle once, until it is gone."""
        if not self._is_hindered:
            self.warn("%s: %s", self._directory, why)
        self._is_hindered = True


TOO_FEW: Final = "`ulimit -n` leaves the agent too few descriptors"


class ReaderLock:
    """Decides which of a job's processes on this node watches all of their tapes for stalls.

    Attributes:
        directory: The job directory.
        tapes: Its tapes.
    """

    def __init__(self, directory: Path, owner: int | None = None) -> None:
        """Open the lock file of a job directory, without taking the lock.

        Args:
            directory: The job directory.
            owner: The user who must own it and its tapes; None for this process's user.
        """
        self.directory = directory
        self.tapes = LocalTapes(directory, os.geteuid() if owner is None else owner)
        self._owner = owner
        self._file = KeptDescriptor(open_or_create(directory / LOCK_NAME, owner))
        self._won = False

    @property
    def is_won(self) -> bool:
        """Whether this process watches; tries to take the lock while it does not hold it."""
        if not self._file.is_open:  # a program that reads its own tapes has closed it, which has released the lock
            self._won = False
            self._file = KeptDescriptor(open_or_create(self.directory / LOCK_NAME, self._owner))
        self._won = self._won or try_lock(self._file.fileno())
        return self._won

    def resign(self) -> None:
        """Release the lock for another process."""
        if self._won and self._file.is_open:
            unlock(self._file.fileno())
        self._file.close()


# --- live jobs --------------------------------------------------------------------------------------------------------
# Finds the jobs with live ranks on this node.


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
