"""The agent as a service of a node: reads every user's job directories that have no reader yet, and serves one port.

A directory that is slow to scan is given up, because every scan delays all other jobs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.foreground import LifeLog
from otel_torchdist.agent.job import AgentError, Job
from otel_torchdist.agent.limits import raise_descriptor_limit
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.directory import MEMORY, USUAL_BASES
from otel_torchdist.node.job.tapes import TOO_FEW, live_jobs
from otel_torchdist.system.files.others import is_transient, reason
from otel_torchdist.system.files.owned import directory_facts
from otel_torchdist.system.this_process.commands import StopSignals

SEARCH_S: Final = 1.0
RETRY_S: Final = 600.0
"""Seconds after which an unusable directory is tried again."""

_logger = logging.getLogger("otel_torchdist")


class NodeWatch:
    """An agent that searches for job directories until a signal stops it."""

    def __init__(
        self,
        agent: Agent,
        base: Path | None,
        keep_s: float,
        *,
        slow: SlowScans | None = None,
        retry_s: float = RETRY_S,
        memory: Path = MEMORY,
        usual_bases: re.Pattern[str] = USUAL_BASES,
    ) -> None:
        """Take ownership of `agent`.

        Args:
            agent: The agent; it reads no job directory yet.
            base: Directory to search for job directories; None for the default base directory of every user.
            keep_s: Seconds to keep a job after its last rank has ended.
            slow: Counts slow scans.
            retry_s: Seconds after which an unusable directory is tried again.
            memory: Parent of the users' default base directories.
            usual_bases: Pattern of the names of default base directories.
        """
        self._agent = agent
        self._base = base
        self._keep_s = keep_s
        self._log = LifeLog(agent.reader)
        self._live_at: dict[Path, float] = {}
        self._unchecked: set[Path] = set()
        self._bases_with_unread_jobs: set[Path] = set()
        self._slow = slow or SlowScans()
        self._retry_s = retry_s
        self._memory, self._usual_bases = memory, usual_bases
        raise_descriptor_limit()

    def run(self, stop: StopSignals) -> None:
        """Read all jobs that appear until a signal comes, then flush."""
        searched_at = float("-inf")
        try:
            while stop.received is None:
                if time.monotonic() - searched_at >= SEARCH_S:
                    searched_at = time.monotonic()
                    self.search()
                self._agent.turn()
                self._log.update()
                stop.wait(self._agent.reader.watch.next_check_s)
        finally:
            self._agent.close()

    def search(self) -> None:
        """Start reading jobs with a live rank; stop reading jobs without one for `keep_s` seconds."""
        now = time.monotonic()
        unchecked: dict[Path, OSError] = {}
        self._try_again(now)
        given_up = self._agent.given_up
        scans = [live_jobs(base, given_up) for base in self._bases(unchecked) if base not in given_up]
        live = [directory for scan in scans for directory in scan.live]
        took_s: dict[Path, float] = {}
        for scan in scans:
            unchecked |= scan.unchecked
            took_s |= scan.took_s
        # A failed listing or a removed directory does not prove that the ranks have ended; the open tapes do.
        live += [path for path in self._agent.directories if path not in live and self._may_be_live(path, unchecked)]
        self._live_at.update(dict.fromkeys(live, now))
        unread_jobs: Counter[Path] = Counter()
        for directory in live:
            if directory in self._agent.directories:
                continue
            if not self._has_room_for(directory):
                unread_jobs[directory.parent] += 1
                continue
            try:
                self._start_reading(directory)
            except OSError as error:
                unchecked[directory] = error
        self._warn_of_unreadable(unchecked)
        self._warn_of_unread_jobs(unread_jobs)
        self._drop_slow(took_s, now)
        for directory in self._agent.directories:
            if now - self._live_at[directory] > self._keep_s:
                _logger.info("stopped reading %s", directory)
                self._agent.drop(directory)
        self._live_at = {path: at for path, at in self._live_at.items() if path in self._agent.directories}

    def _drop_slow(self, took_s: Mapping[Path, float], now: float) -> None:
        """Stop reading slow job directories. A base directory counts as slow only if no job directory in it is slow."""
        for path, seconds in self._slow.slow_in(took_s).items():
            self._agent.given_up[path] = now
            _logger.warning("%s is no longer read: scanning it takes %.1f s", path, seconds)
            for directory in self._agent.directories:
                if path in (directory, directory.parent):
                    self._agent.drop(directory)

    def _may_be_live(self, directory: Path, unchecked: Mapping[Path, OSError]) -> bool:
        return directory in unchecked or directory.parent in unchecked or self._agent.is_live(directory)

    def _try_again(self, now: float) -> None:
        """Allow directories that were given up `retry_s` seconds ago to be read again."""
        given_up = self._agent.given_up
        for path in [path for path, since in given_up.items() if now - since > self._retry_s]:
            del given_up[path]

    def _has_room_for(self, directory: Path) -> bool:
        with contextlib.suppress(OSError):
            return self._agent.has_room_for_job_of(directory.lstat().st_uid)
        return True  # the directory is gone: reading it will fail and report that

    def _warn_of_unreadable(self, unchecked: dict[Path, OSError]) -> None:
        """Warn about each directory that cannot be scanned, once until it can be scanned again."""
        for path, error in unchecked.items():
            if path not in self._unchecked:
                _logger.warning("%s cannot be scanned: %s", path, reason(error))
        self._unchecked = set(unchecked)

    def _warn_of_unread_jobs(self, unread_jobs: Mapping[Path, int]) -> None:
        """Warn about each base directory with unread job directories, once until all of them are read again."""
        for base, count in unread_jobs.items():
            if base not in self._bases_with_unread_jobs:
                _logger.warning("%s: %d of its job directories are not read: %s", base, count, TOO_FEW)
        self._bases_with_unread_jobs = set(unread_jobs)

    def _start_reading(self, directory: Path) -> None:
        """Start reading a job directory.

        Raises:
            OSError: It cannot be read now, but may be readable later.
        """
        try:
            if self._is_read(directory):
                return
            self._agent.add(Job(directory))
        except AgentError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError):
                _logger.debug("%s", error)  # its own agent reads it, or its ranks do
                return
            if is_transient(cause):
                raise cause from error
            self._give_up(directory, reason(cause))
            return
        except Exception as error:  # one bad directory must not affect the others
            self._give_up(directory, readable(repr(error), 200))
            return
        _logger.info("reading %s", directory)

    def _is_read(self, directory: Path) -> bool:
        """Return whether the directory is already read under another path.

        A second `Job` would drop the lock of the first: closing any descriptor of a file releases its POSIX locks.
        """
        with contextlib.suppress(OSError):
            info = directory_facts(directory)
            return self._agent.is_read((info.st_dev, info.st_ino))
        return False

    def _give_up(self, directory: Path, why: str) -> None:
        self._agent.given_up[directory] = time.monotonic()
        _logger.warning("%s is not read: %s", directory, why)

    def _bases(self, unchecked: dict[Path, OSError]) -> Iterable[Path]:
        """Return the base directories to search.

        Symbolic links are left out: anyone may create entries in `/dev/shm`, and a link could lead to another user's
        tapes.
        """
        if self._base is not None:
            return [self._base]
        try:
            with os.scandir(self._memory) as entries:
                names = [
                    entry.name for entry in entries if self._usual_bases.fullmatch(entry.name) and _is_directory(entry)
                ]
        except OSError as error:
            unchecked[self._memory] = error
            return [*{directory.parent for directory in self._agent.directories}]
        return [self._memory / name for name in sorted(names)]


def _is_directory(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


SLOW_S: Final = 0.5
"""Minimum duration of a slow scan, in seconds. Scanning a full directory takes some 10 ms."""
SLOW_SCANS: Final = 3
"""Consecutive slow scans after which a directory is given up: a single scan may include a suspension of this process.
"""


class SlowScans:
    """Counter of consecutive slow scans. A base directory counts as slow only if no job directory in it is slow."""

    def __init__(self, slow_s: float = SLOW_S) -> None:
        """Count scans that take `slow_s` seconds or longer."""
        self._slow_s = slow_s
        self._slow: Counter[Path] = Counter()

    def slow_in(self, took_s: Mapping[Path, float]) -> dict[Path, float]:
        """Return the directories with `SLOW_SCANS` consecutive slow scans, and the seconds that this scan took."""
        slow = {path for path, seconds in took_s.items() if seconds >= self._slow_s}
        parents_of_slow = {path.parent for path in slow}
        self._slow = Counter({path: self._slow[path] + 1 for path in slow - parents_of_slow})
        return {path: took_s[path] for path, scans in self._slow.items() if scans >= SLOW_SCANS}
