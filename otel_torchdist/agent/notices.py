"""Announces verdicts on the standard error of the job, once per incident.

A separate thread writes, because a file system may hang. If it cannot write a notice, it retries for `GIVEN_UP_S`: a
process that has the file open without O_APPEND may end. Meanwhile a rank may log the notice, or a launcher whose ranks
have failed may write it.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from otel_torchdist import guard
from otel_torchdist.agent.log_relay import is_relayed, log_position, relayed_position
from otel_torchdist.judge.stall.events import VerdictGiven
from otel_torchdist.judge.stall.reporting.attributes import notice_lines
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.node.job.agent_notes import is_announced, leave_notice, note_announced, take_notice
from otel_torchdist.node.job.ancestry import STDERR, StandardError, descriptor_path, open_flags
from otel_torchdist.node.job.description_file import read_description
from otel_torchdist.node.job.slurm import srun_on
from otel_torchdist.system.this_process.stderr_logging import NOTICE, logged_as
from otel_torchdist.tape.identity import process_start_ticks, shares_pids
from otel_torchdist.tape.reading.reader import TapeReader

FIRST_TRY_S: Final = 0.3
"""Seconds for which the reader waits for the first attempt."""
RETRY_S: Final = 0.25
RELAY_CHECK_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
GIVEN_UP_S: Final = 60.0
"""Seconds of retries. Launchers end within seconds of their ranks, or restart them within a minute."""
RECENT_NS: Final = 60_000_000_000
"""Maximum age of a job's last sign of life for a notice. Later, its standard error may belong to another job."""

_logger = logging.getLogger("otel_torchdist")


class Notices:
    """The notices of one reader; see `Announcer`."""

    def __init__(
        self, tapes: Callable[[], Iterable[TapeReader]], is_rank: bool = False, is_relayed: bool = False
    ) -> None:
        """Announce nothing yet.

        Args:
            tapes: Returns the tapes being read.
            is_rank: Whether this process is a rank, so that its log is the job's log.
            is_relayed: Whether ranks relay the log of this process; see `LogRelay`.
        """
        self._tapes = tapes
        self._is_rank = is_rank
        self._is_relayed = is_relayed
        self._threads: list[threading.Thread] = []

    @property
    def is_announcing(self) -> bool:
        """Whether a notice still has to be written."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return bool(self._threads)

    def announce(self, event: VerdictGiven, text: str) -> bool:
        """See `Announcer`.

        Another user may forge the description of a job's standard error. So a notice on another user's job is only left
        for its launcher to write.
        """
        with guard.guarded("the notice on stderr"):
            notice = self._notice(event, text)
            return notice is not None and (notice.is_delivered or self._deliver(notice))
        return False

    def _deliver(self, notice: _Notice) -> bool:
        thread = threading.Thread(target=notice.write_once if self._is_rank else notice.write_or_relay, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # Python 3.12 starts no thread during shutdown
            notice.write_once()
        else:
            self._threads.append(thread)
        notice.tried.wait(FIRST_TRY_S)
        if self._is_rank and not notice.is_delivered:
            notice.log()
        return notice.is_delivered

    def _notice(self, event: VerdictGiven, text: str) -> _Notice | None:
        views = event.world.ranks.values()
        if not any(_is_recent(view, event.world.taken_ns) for view in views):
            return None
        nonces = {view.nonce for view in views if not view.is_remote}
        tapes = [tape for tape in self._tapes() if tape.identity.nonce in nonces]
        if not tapes:
            return None
        first = min(tapes, key=lambda tape: tape.identity.rank)
        host = first.identity.host if len(nonces) < first.identity.world_size else ""
        described = read_description(first.path, first.owner)
        launcher = srun_on(first.identity.host, described.job) if described is not None else []
        lines = notice_lines(text, event.world.run, first.path.parent, "" if launcher else host, launcher)
        own_tapes = [tape for tape in tapes if tape.owner == os.geteuid()]
        notice = _Notice(
            lines, standard_errors_of(own_tapes), first.path.parent, event.incident.trace_id, self._is_relayed
        )
        if own_tapes:
            return notice
        if event.verdict.kind.traits.is_final:  # the launcher may read it much later, when a stall may be over
            notice.leave(first.owner)
        return None


def _is_recent(view: RankView, now_ns: int) -> bool:
    return view.alive or now_ns - max(view.heartbeat_ns, view.seen_alive_ns) < RECENT_NS


def standard_errors_of(tapes: Iterable[TapeReader]) -> list[StandardError]:
    """Return the distinct standard errors that ranks have described, each with all holders, lowest rank first."""
    holders: dict[tuple[int, int, str], dict[tuple[int, int], None]] = {}
    for tape in sorted(tapes, key=lambda tape: tape.identity.rank):
        description = read_description(tape.path, tape.owner) if shares_pids(tape.identity) else None
        if description is not None and description.stderr is not None:
            stderr = description.stderr
            holders.setdefault((stderr.device, stderr.inode, stderr.path), {}).update(dict.fromkeys(stderr.holders))
    return [StandardError(*file, tuple(processes)) for file, processes in holders.items()]


class _Notice:
    """A notice: its lines, and the files to write them to.

    Attributes:
        tried: Set after the first attempt.
        is_delivered: Whether the lines have been written, or logged by a rank.
    """

    def __init__(
        self,
        lines: Sequence[str],
        files: Sequence[StandardError],
        directory: Path,
        trace_id: int,
        is_relayed: bool,
    ) -> None:
        """Prepare a notice, without writing it.

        Args:
            lines: The lines, without line ends.
            files: Standard errors in order of preference; the lines go to the first that accepts them.
            directory: The job directory.
            trace_id: Trace id of the incident.
            is_relayed: See `Notices`.
        """
        self.tried = threading.Event()
        self.is_delivered = is_announced(directory, trace_id)
        self._lines = lines
        self._text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        self._files = files
        self._directory = directory
        self._trace_id = trace_id
        self._is_relayed = is_relayed
        self._is_left_for_launcher = False

    def write_once(self) -> None:
        """Try once to write the lines."""
        with guard.guarded("the notice on stderr"):
            self._write()
        self.tried.set()

    def write_or_relay(self) -> None:
        """Write the lines, or have a rank log them; retry for `GIVEN_UP_S`."""
        deadline, pause_s = time.monotonic() + GIVEN_UP_S, RETRY_S
        with guard.guarded("the notice on stderr"):
            while not self._write() and not self._relay(deadline) and time.monotonic() < deadline:
                self.leave()
                self.tried.set()
                time.sleep(pause_s)
                pause_s = min(1.1 * pause_s, LONGEST_PAUSE_S)
            take_notice(self._directory, self._trace_id)
        self.tried.set()

    def leave(self, owner: int | None = None) -> None:
        """Leave the lines for the launcher; see `leave_notice`."""
        with contextlib.suppress(OSError):  # no space left
            leave_notice(self._directory, self._trace_id, self._text, owner)
            self._is_left_for_launcher = True

    def log(self) -> None:
        """Log the lines to the log of this process."""
        for line in self._lines:
            _logger.warning("%s", line, extra=logged_as(NOTICE))
        self._mark_delivered()

    def _write(self) -> bool:
        """Write the lines, unless the launcher has taken them meanwhile; return whether they are delivered."""
        is_taken = self._is_left_for_launcher and not take_notice(self._directory, self._trace_id)
        self._is_left_for_launcher = False
        if is_taken or any(write_to(file, self._text) is NoticeDelivery.DONE for file in self._files):
            self._mark_delivered()
        return self.is_delivered

    def _mark_delivered(self) -> None:
        self.is_delivered = True
        note_announced(self._directory, self._trace_id)

    def _relay(self, deadline: float) -> bool:
        """Log the lines, and wait until a rank has relayed them; return False if no rank relays the log."""
        if not self._is_relayed or not is_relayed(self._directory):
            return False
        self.log()
        self.tried.set()
        *log, size = log_position(self._directory)
        while time.monotonic() < deadline:
            has_rank = is_relayed(self._directory)  # checked before the position: an ending rank relays the new lines
            *relayed, read = relayed_position(self._directory)
            if relayed == log and read >= size > 0:
                return True
            if not has_rank:
                break
            time.sleep(RELAY_CHECK_S)
        self.is_delivered = False
        return False


# --- writing to another process's standard error ----------------------------------------------------------------------
# Writes a few lines to the standard error of a job, from a process that has not inherited it.
#
# The file is opened for each text and closed at once: a pipe has no end for its reader while we have it open. It is
# opened through `/proc` while a process has it as its standard error, else by its path (regular files only). A regular
# file is not written to while a process has it open without O_APPEND, as with a shell's `2>file`: that process would
# overwrite the appended lines.


_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_STREAMS: Final = (1, 2)
"""Descriptors through which launchers, shells and ranks write to a log: standard output is often the same file."""
_REMOVED: Final = " (deleted)"


class NoticeDelivery(enum.Enum):
    """Result of an attempt to write."""

    DONE = "done"
    IN_USE = "in use"
    """A process has the file open without O_APPEND."""
    IMPOSSIBLE = "impossible"
    """No process has the file open any more, its pipe is full, or it is a socket, which cannot be opened again."""


def write_to(stderr: StandardError, text: bytes) -> NoticeDelivery:
    """Write to the standard error of a job. Blocks only where its file system hangs.

    Args:
        stderr: The file, as described by a rank of this process's own user.
        text: Whole lines, at most PIPE_BUF bytes, so that a pipe accepts all of them or none.
    """
    try:
        file = _open(stderr)
    except OSError:  # ENXIO: a socket, or a pipe without reader; EACCES: another user's process
        return NoticeDelivery.IMPOSSIBLE
    try:
        info = os.fstat(file)
        if not _is_same_file(stderr, info):
            return NoticeDelivery.IMPOSSIBLE
        if stat.S_ISREG(info.st_mode) and _is_overwritten(stderr.path, info):
            return NoticeDelivery.IN_USE
        os.write(file, text)
    except OSError:  # EAGAIN: the pipe is full; EPIPE: it has no reader any more
        return NoticeDelivery.IMPOSSIBLE
    finally:
        os.close(file)
    return NoticeDelivery.DONE


def _open(stderr: StandardError) -> int:
    """Open the file through a process that has it open, which also finds a removed file; else by its path.

    Raises:
        OSError: It cannot be opened.
    """
    for pid, ticks in stderr.holders:
        if process_start_ticks(pid) == ticks and _has_open(pid, STDERR, stderr.path, stderr):
            return os.open(descriptor_path(pid), _FLAGS)
    return os.open(stderr.path, _FLAGS | os.O_NOFOLLOW)


def _is_same_file(stderr: StandardError, info: os.stat_result) -> bool:
    return (info.st_dev, info.st_ino) == (stderr.device, stderr.inode)


def _has_open(pid: int, descriptor: int, path: str, stderr: StandardError) -> bool:
    return (info := _file_info(pid, descriptor, path)) is not None and _is_same_file(stderr, info)


def _is_overwritten(path: str, file: os.stat_result) -> bool:
    """Return whether a process has the file as its standard output or standard error without O_APPEND."""
    for name in os.listdir("/proc"):
        for descriptor in _STREAMS if name.isdigit() else ():
            info = _file_info(int(name), descriptor, path)
            if info is None or not os.path.samestat(info, file):
                continue
            with contextlib.suppress(OSError):  # closed meanwhile
                if not open_flags(int(name), descriptor) & os.O_APPEND:
                    return True
    return False


def _file_info(pid: int, descriptor: int, path: str) -> os.stat_result | None:
    """Return the status of the file behind a descriptor, or None if it has another path.

    Files with another path are not opened, because their file system may hang.
    """
    try:
        link = descriptor_path(pid, descriptor)
        is_same = os.readlink(link).removesuffix(_REMOVED) == path.removesuffix(_REMOVED)
        return os.stat(link) if is_same else None
    except OSError:  # the process is gone, or belongs to another user
        return None
