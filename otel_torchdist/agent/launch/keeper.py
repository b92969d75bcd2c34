"""Keeps an agent running for this job's tapes, from inside the training process.

All ranks of a node check once a second; the rank that gets the lock starts the agent. Ranks coordinate only through
files and locks: they need not know each other, and no rank's death leaves the others without an agent.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist import guard
from otel_torchdist.agent.launch.detached import ChildrenAwaitedError, awaits_any_child
from otel_torchdist.agent.launch.spawn import FORK_TIMEOUT_S, spawn_agent
from otel_torchdist.agent.log_relay import LogRelay
from otel_torchdist.node.job.directory import READER_LOCK_NAME, START_LOCK_NAME
from otel_torchdist.system.files.kept import KeptFile
from otel_torchdist.system.files.locks import holder_of, is_file_locked, is_locked_elsewhere, try_lock, unlock
from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.this_process.end import ProcessEnd

START_TIMEOUT_S: Final = 10.0
"""Seconds after which an agent that has not begun to read counts as failed."""
MAX_STARTS: Final = 5
STARTS_WITHIN_S: Final = 600.0
FIRST_PAUSE_S: Final = 1.0

PUT_OFF_WARNING_S: Final = 30.0
"""Seconds of `os.wait()` in the program after which a rank warns that no agent can be started meanwhile."""

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
_MAX_BYTES: Final = 4096
"""Maximum bytes to read of the file with the times of starts."""

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True, slots=True)
class KeeperSurroundings:
    """The functions of this process and of the machine that an `AgentKeeper` calls; tests replace them.

    Attributes:
        spawn: Starts an agent; see `spawn_agent` for the arguments and the result.
        awaits_any_child: Returns whether a thread of this process waits for any of its children.
        clock_ns: Returns the monotonic time in nanoseconds.
    """

    spawn: Callable[[Path, Callable[[], object], bool, bool], str] = spawn_agent
    awaits_any_child: Callable[[], bool] = awaits_any_child
    clock_ns: Callable[[], int] = time.monotonic_ns


class AgentKeeper:
    """The rank's part in keeping an agent running for the job directory that it records to."""

    def __init__(
        self, surroundings: KeeperSurroundings | None = None, on_no_agent: Callable[[Path], object] = lambda _: None
    ) -> None:
        """Keep no agent yet.

        Args:
            surroundings: None for the functions of this process.
            on_no_agent: Called with the base directory of a job that no agent of this user will read.
        """
        self._surroundings = surroundings or KeeperSurroundings()
        self._on_no_agent = on_no_agent
        self._directory: Path | None = None
        self._directory_keeper: _DirectoryKeeper | None = None
        self._process = os.getpid()
        self._end = ProcessEnd(self.close)

    def keep(self, directory: Path) -> None:
        """Keep an agent running for `directory`, from the next check on.

        Call this before capture registers its own `ProcessEnd`: these run in reverse order, so the tape is finished
        when `close` runs.
        """
        self._end.arm()
        if os.getpid() != self._process:  # a rank forked from a rank holds none of its locks
            self._process = os.getpid()
            self._directory_keeper = None
        self._directory = directory

    def check(self) -> None:
        """Start an agent if there is none, and relay its warnings. Call this once a second, on one thread."""
        directory = self._directory
        if directory is not None:
            self._keeper_of(directory).check()

    def _keeper_of(self, directory: Path) -> _DirectoryKeeper:
        if self._directory_keeper is None or self._directory_keeper.directory != directory:
            if self._directory_keeper is not None:
                self._directory_keeper.close()
            self._directory_keeper = _DirectoryKeeper(directory, self._surroundings, self._on_no_agent)
        return self._directory_keeper

    def close(self) -> None:
        """Stop checking; the agent ends after all ranks have ended. Start one now if the job never had an agent."""
        self._end.disarm()
        directory, self._directory = self._directory, None
        with guard.guarded("leaving the agent"):
            if directory is not None:
                self._keeper_of(directory).close()
        self._directory_keeper = None


def is_read(directory: Path) -> bool:
    """Return whether an agent reads a job directory.

    Not for ranks: closing the lock file would release the locks that they hold on it.
    """
    with contextlib.suppress(OSError):
        return is_file_locked(directory / READER_LOCK_NAME)
    return False


def newest_start_ns(directory: Path) -> int:
    """Return the monotonic time at which a rank last started an agent; 0 for never. Not for ranks; see `is_read`."""
    with contextlib.suppress(OSError):
        return max(_starts(read_regular(directory / START_LOCK_NAME, _MAX_BYTES)), default=0)
    return 0


def start_agent(directory: Path) -> None:
    """Start an agent for ranks that ended before they could start one."""
    _DirectoryKeeper(directory, KeeperSurroundings(), lambda _: None).close()


def _belongs_to_this_user(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return pid > 0 and os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    return False


def _starts(content: bytes) -> list[int]:
    return [int(word) for word in content.split() if word.isdigit()]


class _DirectoryKeeper:
    """The keeper of one job directory.

    An agent that ends is restarted after 1, 2, 4, 8 s, because the cause (no space, no memory) may pass, but at most
    five times within ten minutes. If it cannot be started at all, there is no further attempt. Starts from before this
    keeper existed do not count: a short program that runs repeatedly in one directory needs a new agent each time.
    """

    def __init__(
        self, directory: Path, surroundings: KeeperSurroundings, on_no_agent: Callable[[Path], object]
    ) -> None:
        self.directory = directory
        self._on_no_agent = on_no_agent
        self._surroundings = surroundings
        self._since_ns = surroundings.clock_ns()
        # Closing any descriptor of a file releases this process's locks on it, so each file stays open.
        self._reader_lock = KeptFile(directory / READER_LOCK_NAME, _FLAGS)
        self._start_lock = KeptFile(directory / START_LOCK_NAME, _FLAGS)
        self._starting_since: float | None = None
        self._starting: threading.Thread | None = None
        self._detached = threading.Event()
        self._was_read = False
        self._has_given_up = False
        self._has_warned = False
        self._put_off_since: float | None = None
        self._is_ending = False
        self._relay = LogRelay(directory)

    def check(self) -> None:
        self._relay.pass_on()
        for lock in (self._reader_lock, self._start_lock):
            lock.reopen()
        is_read = is_locked_elsewhere(self._reader_lock.fileno())
        if is_read and not self._was_read:
            self._was_read = True
            if not _belongs_to_this_user(holder_of(self._reader_lock.fileno())):
                self._on_no_agent(self.directory.parent)  # another user's service, which only reads
        if self._starting_since is not None:
            if is_read or self._now_s() - self._starting_since > START_TIMEOUT_S:
                self._starting_since = None
                unlock(self._start_lock.fileno())
            return
        if is_read or self._has_given_up or self._must_put_off() or not try_lock(self._start_lock.fileno()):
            return
        if is_locked_elsewhere(self._reader_lock.fileno()) or not self._may_start():
            unlock(self._start_lock.fileno())
            return
        self._starting_since = self._now_s()
        self._detached.clear()
        self._starting = threading.Thread(target=self._start, name="otel-torchdist-start", daemon=True)
        try:
            self._starting.start()
        except RuntimeError:  # Python 3.12 starts no thread during shutdown
            self._starting = None
            self._start(waits_until_ready=False)

    def _now_s(self) -> float:
        return self._surroundings.clock_ns() / 1e9

    def close(self) -> None:
        self._is_ending = True
        if not self._was_read:
            self.check()
        if self._starting is not None:
            self._detached.wait(FORK_TIMEOUT_S)  # else the start would be cut off when this process ends
        self._relay.close()
        self._reader_lock.close()
        self._start_lock.close()

    def _must_put_off(self) -> bool:
        """Return whether to postpone the start: the program is in an `os.wait()`, which would reap our child."""
        if self._is_ending or not self._surroundings.awaits_any_child():
            self._put_off_since = None
            return False
        now = self._now_s()
        if self._put_off_since is None:
            self._put_off_since = now
        elif now - self._put_off_since > PUT_OFF_WARNING_S:
            self._put_off_since = math.inf
            _logger.warning(
                "no agent is started while this process waits for any of its children (os.wait): until then nothing "
                "of this job is exported, unless another rank of the node starts an agent or you run `otel-torchdist "
                "agent`"
            )
        return True

    def _start(self, waits_until_ready: bool = True) -> None:
        try:
            with guard.guarded("starting the agent"), contextlib.suppress(ChildrenAwaitedError):
                spawn = self._surroundings.spawn
                problem = spawn(self.directory, self._detached.set, self._is_ending, waits_until_ready)
                if problem:
                    self._has_given_up = True
                    self._on_no_agent(self.directory.parent)
                    _logger.warning("the agent cannot be started (%s): nothing of this job is exported", problem)
        finally:
            self._detached.set()

    def _may_start(self) -> bool:
        """Return whether another start is due; if so, record it in the lock file, where all ranks record starts."""
        now_ns = self._surroundings.clock_ns()
        starts = _starts(os.pread(self._start_lock.fileno(), _MAX_BYTES, 0))
        since_ns = max(self._since_ns, now_ns - round(STARTS_WITHIN_S * 1e9))
        recent = [start for start in starts if since_ns <= start <= now_ns]
        if len(recent) >= MAX_STARTS:
            if not self._has_warned:
                self._has_warned = True
                self._on_no_agent(self.directory.parent)
                _logger.warning(
                    "the agent has exited %d times within %d minutes and is not restarted until they have passed: "
                    "nothing of this job is exported until then; its log is %s",
                    len(recent), STARTS_WITHIN_S / 60, self._relay.path,
                )  # fmt: skip
            return False
        pause_s = FIRST_PAUSE_S * 2 ** (len(recent) - 1) if recent else 0.0
        if recent and now_ns - recent[-1] < pause_s * 1e9:
            return False
        content = b"".join(b"%d\n" % start for start in [*recent, now_ns])
        os.ftruncate(self._start_lock.fileno(), 0)
        os.pwrite(self._start_lock.fileno(), content, 0)
        return True
