"""The tapes of a job directory, opened as they appear, and the lock that decides which process reads them."""

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
from otel_torchdist.formats import OtherFormatError
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.directory import READER_LOCK_NAME, job_directories, list_jobs, list_tapes, tapes_in
from otel_torchdist.system.files.kept import KeptDescriptor
from otel_torchdist.system.files.locks import is_locked_elsewhere, try_lock, unlock
from otel_torchdist.system.files.others import is_transient, open_regular, reason
from otel_torchdist.system.files.owned import open_or_create
from otel_torchdist.tape.reading.reader import TapeReader

MAX_WARNINGS: Final = 16
"""Maximum warnings about the tapes of one directory: its owner can cause any number of problems there."""
MAX_OPENED: Final = 1024

_logger = logging.getLogger("otel_torchdist")


class LocalTapes:
    """The tapes of one job directory.

    A process never opens its own tapes: closing a second descriptor would release the lock that marks it as alive.
    """

    def __init__(self, directory: Path, owner: int | None = None, most_opened: int = MAX_OPENED) -> None:
        """Start without tapes.

        Args:
            directory: The job directory.
            owner: The user who must own the directory and its tapes; None for any directory, see `TapeReader`.
            most_opened: Maximum tapes to open per call of `new`; the next call opens more.
        """
        self._most_opened = most_opened
        self._directory = directory
        self._owner = owner
        self._seen: set[Path] = set()
        self._warnings = 0
        self._has_obstacle = False
        self._has_opened = False
        self._refusals: set[str] = set()

    @property
    def refusal(self) -> str:
        """Why all tapes so far are of another version; '' if one could be opened, or if there is none."""
        return "" if self._has_opened or not self._refusals else min(self._refusals)

    def exclude(self, path: Path) -> None:
        """Never open this tape, because this process writes it."""
        self._seen.add(path)

    def new(self, only_alive: bool, most: int | None = None) -> list[TapeReader]:
        """Open the tapes that have appeared since the last call; warn once about each unreadable tape and each copy.

        Tapes that cannot be opened for a transient reason, such as a lack of descriptors, are retried at the next call.

        Args:
            only_alive: Whether to leave out tapes whose writer is gone: they belong to earlier runs.
            most: Maximum tapes to open; None for no limit.
        """
        try:
            paths = list_tapes(self._directory, self._owner)
        except OSError as error:
            self._report_obstacle(f"its tapes cannot be listed: {reason(error)}")
            return []
        self._seen.intersection_update(paths)
        unseen = [path for path in paths if path not in self._seen][: self._most_opened]
        tapes: list[TapeReader] = []
        for index, path in enumerate(unseen):
            if most is not None and len(tapes) >= most:
                unread = len(unseen) - index
                self._report_obstacle(f"{unread} of its tapes are not read: {TOO_FEW}")
                return tapes
            try:
                tape = self._opened(path, only_alive)
            except OtherFormatError as error:
                self._seen.add(path)
                if error.refusal not in self._refusals:  # the tapes of a job are of one version: one warning for all
                    self._refusals.add(error.refusal)
                    self.warn("tapes cannot be read: %s", error)
                continue
            except TapeError as error:
                cause = error.__cause__
                if isinstance(cause, OSError) and is_transient(cause):
                    self._report_obstacle(f"a tape cannot be read for now: {error}")
                    return tapes
                self._seen.add(path)
                self.warn("a tape cannot be read: %s", error)
                continue
            self._seen.add(path)
            self._has_opened = True
            if tape is not None:
                tapes.append(tape)
        self._has_obstacle = False
        return tapes

    def _opened(self, path: Path, only_alive: bool) -> TapeReader | None:
        """Open a tape; return None for a copy and, if `only_alive`, for a tape without a live writer."""
        tape = TapeReader(path, self._owner)
        original = f"{tape.identity.nonce:016x}.tape"
        if path.name != original:  # the spans of a copy would be duplicates, and its rank would appear dead
            self.warn("%s is ignored: it is a copy of %s", readable(str(path)), original)
        elif not only_alive or tape.is_alive():
            return tape
        tape.close()
        return None

    def warn(self, text: str, *values: object) -> None:
        """Log a problem of this directory, up to `MAX_WARNINGS`: its owner can cause any number of them."""
        self._warnings += 1
        if self._warnings <= MAX_WARNINGS:
            _logger.warning(text, *values)
        if self._warnings == MAX_WARNINGS:
            _logger.warning("%s: further problems with its tapes are not logged", self._directory)

    def _report_obstacle(self, why: str) -> None:
        """Log an obstacle once, until it is gone."""
        if not self._has_obstacle:
            self.warn("%s: %s", self._directory, why)
        self._has_obstacle = True


TOO_FEW: Final = "`ulimit -n` leaves the agent too few descriptors"
"""The reason in warnings about tapes or job directories that are not read."""


class ReaderLock:
    """The lock of the process that watches all tapes of a job directory for stalls.

    Attributes:
        tapes: The tapes of the job directory.
    """

    def __init__(self, directory: Path, owner: int | None = None) -> None:
        """Open the lock file of a job directory, without taking the lock.

        Args:
            directory: The job directory.
            owner: The user who must own the directory and its tapes; None for this process's user.
        """
        self.directory = directory
        self.tapes = LocalTapes(directory, os.geteuid() if owner is None else owner)
        self._owner = owner
        self._file = KeptDescriptor(open_or_create(directory / READER_LOCK_NAME, owner))
        self._won = False

    @property
    def is_won(self) -> bool:
        """Whether this process has the lock; tries to take it if not."""
        if not self._file.is_open:  # the program has closed the descriptor, which has released the lock
            self._won = False
            self._file = KeptDescriptor(open_or_create(self.directory / READER_LOCK_NAME, self._owner))
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
"""Maximum tapes to check per base directory, so that no user delays the others."""


@dataclass(frozen=True, slots=True)
class LiveJobs:
    """The result of checking a base directory.

    Attributes:
        live: Job directories with a live rank.
        unchecked: Directories that could not be checked, with the error; they may have a live rank.
        took_s: Seconds that the check of each directory took; for the base directory, of all directories in it.
    """

    live: list[Path] = field(default_factory=list[Path])
    unchecked: dict[Path, OSError] = field(default_factory=dict[Path, OSError])
    took_s: dict[Path, float] = field(default_factory=dict[Path, float])


def live_jobs(base: Path, without: Collection[Path] = (), most: int = MAX_TAPES) -> LiveJobs:
    """Find the job directories with a live rank.

    Args:
        base: The base directory.
        without: Job directories to leave out.
        most: Maximum tapes to check.
    """
    jobs = LiveJobs()
    began = time.monotonic()
    try:
        directories = [directory for directory in list_jobs(base) if directory not in without]
    except OSError as error:
        jobs.unchecked[base] = error
        return jobs
    tapes: dict[Path, list[Path]] = {}
    for directory in directories:
        listed_at = time.monotonic()
        try:
            tapes[directory] = list_tapes(directory)
        except OSError as error:
            jobs.unchecked[directory] = error
        jobs.took_s[directory] = time.monotonic() - listed_at
    left = most
    for directory in sorted(tapes, key=lambda path: len(tapes[path])):  # fullest last: it must not hide the others
        try:
            if any(map(_is_live, tapes[directory][:left])):
                jobs.live.append(directory)
            elif len(tapes[directory]) > left:
                jobs.unchecked[directory] = OSError(
                    errno.E2BIG, f"it and the directories beside it hold more than {most} tapes"
                )
            left = max(left - len(tapes[directory]), 0)
        except OSError as error:
            jobs.unchecked[directory] = error
    jobs.live.sort()
    jobs.took_s[base] = time.monotonic() - began
    return jobs


def jobs_by_newest_rank(base: Path) -> list[Path]:
    """Return the job directories with a live rank; the directory in which a rank started last comes first."""
    newest_ns = {directory: _newest_live_tape_ns(directory) for directory in job_directories(base)}
    live = [directory for directory, created_ns in newest_ns.items() if created_ns]
    return sorted(live, key=lambda directory: newest_ns[directory], reverse=True)


def _is_live(path: Path) -> bool:
    """Return whether the writer of a tape is alive.

    Raises:
        OSError: The tape cannot be opened now, but may be later.
    """
    try:
        return _created_if_live_ns(path) > 0
    except OSError as error:
        if is_transient(error):
            raise
        return False


def _newest_live_tape_ns(directory: Path) -> int:
    newest_ns = 0
    for path in tapes_in(directory):
        try:
            newest_ns = max(newest_ns, _created_if_live_ns(path))
        except OSError:
            continue
    return newest_ns


def _created_if_live_ns(path: Path) -> int:
    """Return the modification time of a tape, which is about its creation; 0 if its writer is gone.

    Raises:
        OSError: The tape cannot be opened, or is not a regular file.
    """
    file = open_regular(path)
    try:
        # Writing through a mapping does not update the modification time on tmpfs.
        return os.fstat(file).st_mtime_ns if is_locked_elsewhere(file) else 0
    finally:
        os.close(file)
