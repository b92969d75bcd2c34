"""Relays the agent's warnings to the log of the training, where users look first.

The agent logs to a file in the job directory. The rank of the node that holds the relay lock logs its warnings; when
that rank ends, another rank takes over, and relays the lines since its own last check. If the rank is alive but does
not check, because its GIL is held, another rank stands in: the warning may be about that very rank.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

from otel_torchdist.system.files.kept import KeptFile, identity_of
from otel_torchdist.system.files.locks import is_file_locked, is_locked_elsewhere, try_lock, unlock
from otel_torchdist.system.files.others import read_part
from otel_torchdist.system.this_process.stderr_logging import ANNOUNCED, NOTICE, log_beyond_stderr

LOG_NAME: Final = "agent.log"
RELAY_LOCK_NAME: Final = "relay.lock"
STAND_IN_LOCK_NAME: Final = "relay.stand-in.lock"
SILENT_CHECKS: Final = 4
"""Checks (one a second) without a heartbeat of the relaying rank after which another rank stands in."""
LEVELS: Final = {
    " WARNING ": logging.WARNING,
    f" {NOTICE} ": logging.WARNING,
    f" {ANNOUNCED} ": logging.WARNING,
    " ERROR ": logging.ERROR,
    " CRITICAL ": logging.CRITICAL,
}
"""Log levels by the word that follows the time in a line of the agent's log."""
MAX_BYTES: Final = 65_536
"""Maximum bytes relayed at once; earlier lines stay in the file only."""

_POSITION_BYTES: Final = 64
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
_TAIL_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK

_logger = logging.getLogger("otel_torchdist")


class LogTail:
    """The lines added to a log file. Used by one thread.

    The file stays open: after it is removed, or its directory, the agent keeps writing to the open file.
    """

    def __init__(self, path: Path) -> None:
        """Begin at the current end of the file, which need not exist yet."""
        self.path = path
        self._file: KeptFile | None = None
        self._identity = (0, 0)
        self._bytes_read: int = 0
        self.skip_new_lines()

    def new_lines(self) -> list[str]:
        """Return the whole lines added since the last call, at most the last `MAX_BYTES`."""
        begin, size = self._advance()
        if size <= begin or self._file is None:
            return []
        with contextlib.suppress(OSError):
            first = max(begin, size - MAX_BYTES)
            text = os.pread(self._file.fileno(), size - first, first)
            complete = text[: text.rfind(b"\n") + 1]
            self._bytes_read -= len(text) - len(complete)
            return complete.decode(errors="replace").splitlines()
        return []

    def skip_new_lines(self) -> None:
        """Skip the lines added since the last call."""
        self._advance()

    @property
    def position(self) -> bytes:
        """Position of this tail, as text: device and inode of the file, and the bytes read."""
        return b"%d %d %d" % (*self._identity, self._bytes_read)

    def skip_to(self, position: bytes) -> None:
        """Skip the bytes before the `position` of another process's tail."""
        self._open_newest()
        words = [int(word) for word in position.split() if word.isdigit()]
        if len(words) == 3 and tuple(words[:2]) == self._identity:
            self._bytes_read = max(self._bytes_read, words[2])

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _advance(self) -> tuple[int, int]:
        self._open_newest()
        begin = self._bytes_read
        if self._file is not None and self._file.is_open:
            self._bytes_read = os.fstat(self._file.fileno()).st_size
        return begin, self._bytes_read

    def _open_newest(self) -> None:
        """Open the file if it is not open; after a rotation, open the new file."""
        try:
            info = os.stat(self.path)
            is_same = (info.st_dev, info.st_ino) == self._identity
            if is_same and self._file is not None and self._file.is_open:
                return
            newest = KeptFile(self.path, _TAIL_FLAGS)
        except OSError:
            return
        self.close()
        self._file, self._identity = newest, identity_of(newest.fileno())
        if not is_same:
            self._bytes_read = 0


class LogRelay:
    """The relay of a job directory's agent log, in one rank. Used by one thread."""

    def __init__(self, directory: Path) -> None:
        """Follow the log in a job directory from its current end."""
        self.path = directory / LOG_NAME
        self._tail = LogTail(self.path)
        self._lock = KeptFile(directory / RELAY_LOCK_NAME, _FLAGS)
        self._stand_in_lock = KeptFile(directory / STAND_IN_LOCK_NAME, _FLAGS)
        self._is_owner = False
        self._stands_in = False
        self._heartbeat_ns = 0
        self._checks_without_heartbeat = 0

    def pass_on(self) -> None:
        """Log the warnings added since the last call, if this process is the relaying rank or stands in for it."""
        self._reopen_locks()
        self._is_owner = self._is_owner or try_lock(self._lock.fileno())
        if self._is_owner:
            self._relay_as_owner()
        elif self._has_new_heartbeat():
            self._relay_new() if self._stands_in else self._tail.skip_new_lines()
            self._stop_standing_in()
        elif self._checks_without_heartbeat >= SILENT_CHECKS:
            self._stands_in = self._stands_in or try_lock(self._stand_in_lock.fileno())
            if self._stands_in:
                self._relay_new()

    def close(self) -> None:
        """Relay the new lines, and leave later ones to another rank."""
        self.pass_on()
        self._tail.close()
        self._lock.close()
        self._stand_in_lock.close()

    def _reopen_locks(self) -> None:
        """Reopen lock files that the program has closed; closing them has released the locks."""
        if not self._lock.is_open:
            self._is_owner = False
            self._lock.reopen()
        if not self._stand_in_lock.is_open:
            self._stands_in = False
            self._stand_in_lock.reopen()

    def _relay_as_owner(self) -> None:
        os.utime(self._lock.fileno())  # the heartbeat that shows the other ranks that this one still checks
        self._stop_standing_in()
        if is_locked_elsewhere(self._stand_in_lock.fileno()):
            self._tail.skip_new_lines()  # a rank stands in for this one until it sees the heartbeat
        else:
            self._relay_new()

    def _has_new_heartbeat(self) -> bool:
        before, self._heartbeat_ns = self._heartbeat_ns, os.fstat(self._lock.fileno()).st_mtime_ns
        self._checks_without_heartbeat = 0 if self._heartbeat_ns != before else self._checks_without_heartbeat + 1
        return self._checks_without_heartbeat == 0

    def _stop_standing_in(self) -> None:
        if self._stands_in:
            unlock(self._stand_in_lock.fileno())
        self._stands_in = False

    def _relay_new(self) -> None:
        """Log the lines added since this rank's last check, except lines that another rank has already logged."""
        progress = self._stand_in_lock.fileno()  # not the other lock file: writing to it would look like a heartbeat
        self._tail.skip_to(os.pread(progress, _POSITION_BYTES, 0))
        lines = self._tail.new_lines()
        for line in lines:
            pass_on(line)
        with contextlib.suppress(OSError):  # no space left
            os.pwrite(progress, self._tail.position.ljust(_POSITION_BYTES), 0) if lines else None


def pass_on(line: str) -> None:
    """Log a line of the agent's log again, if it is a warning or worse."""
    for word, level in LEVELS.items():
        _, matched, message = line.partition(word)
        if matched:
            if word.strip() == ANNOUNCED:
                log_beyond_stderr(_logger, level, message)
            else:
                _logger.log(level, "%s", message)
            return


def is_relayed(directory: Path) -> bool:
    """Return whether a rank relays the agent's log."""
    with contextlib.suppress(OSError):
        return is_file_locked(directory / RELAY_LOCK_NAME)
    return False


def relayed_position(directory: Path) -> tuple[int, int, int]:
    """Return the device and inode of the agent's log, and the bytes that ranks have relayed; zeros if none."""
    with contextlib.suppress(OSError, ValueError):
        device, inode, read = read_part(directory / STAND_IN_LOCK_NAME, 0, _POSITION_BYTES).split()
        return int(device), int(inode), int(read)
    return 0, 0, 0


def log_position(directory: Path) -> tuple[int, int, int]:
    """Return the device, inode and size in bytes of the agent's log; zeros if there is none."""
    with contextlib.suppress(OSError):
        info = os.stat(directory / LOG_NAME)
        return info.st_dev, info.st_ino, info.st_size
    return 0, 0, 0
