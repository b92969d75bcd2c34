"""The agent as a service of a node: reads every run of every user that has no reader, and serves one port.

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
from otel_torchdist.agent.limits import raise_limit
from otel_torchdist.model.naming import readable
from otel_torchdist.node.job.directory import MEMORY, USUAL_BASES
from otel_torchdist.node.job.tapes import TOO_FEW, live_jobs
from otel_torchdist.system.files.others import is_passing, reason
from otel_torchdist.system.files.owned import directory_facts
from otel_torchdist.system.this_process.commands import StopSignals

SEARCH_S: Final = 1.0
RETRY_S: Final = 600.0
"""Time after which an unusable directory is tried again."""

_logger = logging.getLogger("otel_torchdist")


class NodeWatch:
    """Runs an agent until a signal stops it."""

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
            agent: The agent; it reads nothing yet.
            base: Where to search for job directories; in every user's usual place if None.
            keep_s: How long a job is kept after its last rank has ended.
            slow: Counts slow scans.
            retry_s: Time after which an unusable directory is tried again.
            memory: Where users have their usual base directories.
            usual_bases: Their names.
        """
        self._agent = agent
        self._base = base
        self._keep_s = keep_s
        self._log = LifeLog(agent.reader)
        self._live_at: dict[Path, float] = {}
        self._unseen: set[Path] = set()
        self._crowded: set[Path] = set()
        self._slow = slow or SlowScans()
        self._retry_s = retry_s
        self._memory, self._usual_bases = memory, usual_bases
        raise_limit()

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
        """Start reading jobs with a live rank, and stop reading those that have had none for a while."""
        now = time.monotonic()
        unseen: dict[Path, OSError] = {}
        self._try_again(now)
        given_up = self._agent.given_up
        found = [live_jobs(base, given_up) for base in self._bases(unseen) if base not in given_up]
        live = [directory for one in found for directory in one.live]
        took_s: dict[Path, float] = {}
        for one in found:
            unseen |= one.unseen
            took_s |= one.took_s
        # A failed listing proves nothing, nor does a directory that was removed; the open tapes do.
        live += [one for one in self._agent.directories if one not in live and self._may_be_live(one, unseen)]
        self._live_at.update(dict.fromkeys(live, now))
        crowded: Counter[Path] = Counter()
        for directory in live:
            if directory in self._agent.directories:
                continue
            if not self._has_room_for(directory):
                crowded[directory.parent] += 1
                continue
            try:
                self._take_up(directory)
            except OSError as error:
                unseen[directory] = error
        self._warn_of_unreadable(unseen)
        self._warn_of_crowded(crowded)
        self._part_with_the_slow(took_s, now)
        for directory in self._agent.directories:
            if now - self._live_at[directory] > self._keep_s:
                _logger.info("stopped reading %s", directory)
                self._agent.drop(directory)
        self._live_at = {one: at for one, at in self._live_at.items() if one in self._agent.directories}

    def _part_with_the_slow(self, took_s: Mapping[Path, float], now: float) -> None:
        """Stop reading what is slow to scan: a directory, or a base directory if none in it is slow by itself."""
        for path, seconds in self._slow.found_slow(took_s).items():
            self._agent.given_up[path] = now
            _logger.warning("%s is no longer read: scanning it takes %.1f s", path, seconds)
            for directory in self._agent.directories:
                if path in (directory, directory.parent):
                    self._agent.drop(directory)

    def _may_be_live(self, directory: Path, unseen: Mapping[Path, OSError]) -> bool:
        return directory in unseen or directory.parent in unseen or self._agent.is_live(directory)

    def _try_again(self, now: float) -> None:
        """Forget, after a while, that a directory was given up."""
        given_up = self._agent.given_up
        for path in [path for path, since in given_up.items() if now - since > self._retry_s]:
            del given_up[path]

    def _has_room_for(self, directory: Path) -> bool:
        with contextlib.suppress(OSError):
            return self._agent.has_room_for_job_of(directory.lstat().st_uid)
        return True  # it is gone, which trying to read it will show

    def _warn_of_unreadable(self, unseen: dict[Path, OSError]) -> None:
        """Warn once about each directory, until it can be scanned again."""
        for path, error in unseen.items():
            if path not in self._unseen:
                _logger.warning("%s cannot be scanned: %s", path, reason(error))
        self._unseen = set(unseen)

    def _warn_of_crowded(self, crowded: Mapping[Path, int]) -> None:
        """Warn once about each base directory, until all job directories in it are read again."""
        for base, count in crowded.items():
            if base not in self._crowded:
                _logger.warning("%s: %d of its job directories are not read: %s", base, count, TOO_FEW)
        self._crowded = set(crowded)

    def _take_up(self, directory: Path) -> None:
        """Start reading a job directory.

        Raises:
            OSError: It cannot be read now, but may be readable a little later.
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
            if is_passing(cause):
                raise cause from error
            self._give_up(directory, reason(cause))
            return
        except Exception as error:  # one bad directory must not affect the others
            self._give_up(directory, readable(repr(error), 200))
            return
        _logger.info("reading %s", directory)

    def _is_read(self, directory: Path) -> bool:
        """Whether this is another path to what is already read: a second `Job` would drop the lock of the first."""
        with contextlib.suppress(OSError):
            facts = directory_facts(directory)
            return self._agent.is_read((facts.st_dev, facts.st_ino))
        return False

    def _give_up(self, directory: Path, why: str) -> None:
        self._agent.given_up[directory] = time.monotonic()
        _logger.warning("%s is not read: %s", directory, why)

    def _bases(self, unseen: dict[Path, OSError]) -> Iterable[Path]:
        """Return where to search. In the usual place anyone can create anything; a link would lead to others' tapes."""
        if self._base is not None:
            return [self._base]
        try:
            with os.scandir(self._memory) as entries:
                names = [one.name for one in entries if self._usual_bases.fullmatch(one.name) and _is_directory(one)]
        except OSError as error:
            unseen[self._memory] = error
            return [*{directory.parent for directory in self._agent.directories}]
        return [self._memory / name for name in sorted(names)]


def _is_directory(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


SLOW_S: Final = 0.5
"""Scan time at which one directory is slow. A full one takes some hundredths of a second."""
SLOW_SCANS: Final = 3
"""Slow scans in a row that count: a single one may coincide with a suspension of this process."""


class SlowScans:
    """Counts slow scans. Those of a base directory count only if no directory in it explains them."""

    def __init__(self, slow_s: float = SLOW_S) -> None:
        """Count scans that take `slow_s` seconds or longer."""
        self._slow_s = slow_s
        self._slow: Counter[Path] = Counter()

    def found_slow(self, took_s: Mapping[Path, float]) -> dict[Path, float]:
        """Return the scanned directories that have now been slow too often, with the time of this scan."""
        slow = {path for path, seconds in took_s.items() if seconds >= self._slow_s}
        explained = {path.parent for path in slow}
        self._slow = Counter({path: self._slow[path] + 1 for path in slow - explained})
        return {path: took_s[path] for path, scans in self._slow.items() if scans >= SLOW_SCANS}
