"""Relays the agent's warnings to the log of the training, where people look first.

The agent writes to a file in the job directory. One rank of the node, whichever takes the lock, relays its warnings;
when that rank is gone, the next one continues from its own last check. If that rank is alive but does not check,
because something holds its GIL, another one stands in for it: it may be the very rank that the warning is about.
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
from otel_torchdist.system.this_process.stderr_logging import ANNOUNCED, NOTICE, goes_to_stderr_only

LOG_NAME: Final = "agent.log"
LOCK_NAME: Final = "relay.lock"
STAND_IN_LOCK_NAME: Final = "relay.stand-in.lock"
SILENT_CHECKS: Final = 4
"""Checks, one a second, without a sign of the rank that is responsible."""
LEVELS: Final = {
    " WARNING ": logging.WARNING,
    f" {NOTICE} ": logging.WARNING,
    f" {ANNOUNCED} ": logging.WARNING,
    " ERROR ": logging.ERROR,
    " CRITICAL ": logging.CRITICAL,
}
"""As they appear in a line of the agent's log, after the time."""
MAX_BYTES: Final = 65_536
"""Most that is read at once; the rest can be found in the file."""

_POSITION_BYTES: Final = 64
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
_TAIL_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK

_logger = logging.getLogger("otel_torchdist")


class LogTail:
    """Reads what is added to a log file, line by line. Belongs to one thread.

    The file stays open: removing it, or the directory around it, removes only a name, and the agent keeps writing.
    """

    def __init__(self, path: Path) -> None:
        """Begin at the current end of the file, which need not exist yet."""
        self.path = path
        self._file: KeptFile | None = None
        self._identity = (0, 0)
        self._read: int = 0
        self.pass_over()

    def new_lines(self) -> list[str]:
        """Return whole lines that were added since the last call; of a large amount only the end."""
        begin, size = self._advance()
        if size <= begin or self._file is None:
            return []
        with contextlib.suppress(OSError):
            first = max(begin, size - MAX_BYTES)
            text = os.pread(self._file.fileno(), size - first, first)
            whole = text[: text.rfind(b"\n") + 1]
            self._read -= len(text) - len(whole)
            return whole.decode(errors="replace").splitlines()
        return []

    def pass_over(self) -> None:
        """Skip what has been added since the last call."""
        self._advance()

    @property
    def position(self) -> bytes:
        """How far which file has been read."""
        return b"%d %d %d" % (*self._identity, self._read)

    def skip_to(self, position: bytes) -> None:
        """Skip what another process has read, which this is the `position` of."""
        self._open_newest()
        words = [int(word) for word in position.split() if word.isdigit()]
        if len(words) == 3 and tuple(words[:2]) == self._identity:
            self._read = max(self._read, words[2])

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _advance(self) -> tuple[int, int]:
        self._open_newest()
        begin = self._read
        if self._file is not None and self._file.is_open:
            self._read = os.fstat(self._file.fileno()).st_size
        return begin, self._read

    def _open_newest(self) -> None:
        """Open the file unless it is open, and open the new one after a rotation."""
        try:
            facts = os.stat(self.path)
            is_same = (facts.st_dev, facts.st_ino) == self._identity
            if is_same and self._file is not None and self._file.is_open:
                return
            newest = KeptFile(self.path, _TAIL_FLAGS)
        except OSError:
            return
        self.close()
        self._file, self._identity = newest, identity_of(newest.fileno())
        if not is_same:
            self._read = 0


class LogRelay:
    """Relays the warnings of a job directory's agent. Belongs to one thread."""

    def __init__(self, directory: Path) -> None:
        """Follow the log in a job directory from its current end."""
        self.path = directory / LOG_NAME
        self._tail = LogTail(self.path)
        self._lock = KeptFile(directory / LOCK_NAME, _FLAGS)
        self._stand_in_lock = KeptFile(directory / STAND_IN_LOCK_NAME, _FLAGS)
        self._is_ours = False
        self._stands_in = False
        self._sign = 0
        self._checks_without_sign = 0

    def pass_on(self) -> None:
        """Log what has been added since the last call, if this process is responsible."""
        self._reopen_locks()
        self._is_ours = self._is_ours or try_lock(self._lock.fileno())
        if self._is_ours:
            self._do_our_part()
        elif self._has_new_sign():
            self._relay_new() if self._stands_in else self._tail.pass_over()
            self._stop_standing_in()
        elif self._checks_without_sign >= SILENT_CHECKS:
            self._stands_in = self._stands_in or try_lock(self._stand_in_lock.fileno())
            if self._stands_in:
                self._relay_new()

    def close(self) -> None:
        """Relay what is new, and leave the rest to another rank."""
        self.pass_on()
        self._tail.close()
        self._lock.close()
        self._stand_in_lock.close()

    def _reopen_locks(self) -> None:
        """Open the files again that the program has closed, which has released the locks."""
        if not self._lock.is_open:
            self._is_ours = False
            self._lock.reopen()
        if not self._stand_in_lock.is_open:
            self._stands_in = False
            self._stand_in_lock.reopen()

    def _do_our_part(self) -> None:
        os.utime(self._lock.fileno())  # the sign that we still check
        self._stop_standing_in()
        if is_locked_elsewhere(self._stand_in_lock.fileno()):
            self._tail.pass_over()  # relayed by the rank that stands in for us until it sees the sign
        else:
            self._relay_new()

    def _has_new_sign(self) -> bool:
        before, self._sign = self._sign, os.fstat(self._lock.fileno()).st_mtime_ns
        self._checks_without_sign = 0 if self._sign != before else self._checks_without_sign + 1
        return self._checks_without_sign == 0

    def _stop_standing_in(self) -> None:
        if self._stands_in:
            unlock(self._stand_in_lock.fileno())
        self._stands_in = False

    def _relay_new(self) -> None:
        """Log what is new, except for what another rank has logged since this one looked."""
        progress = self._stand_in_lock.fileno()  # of the other file, the time of the last change is a sign
        self._tail.skip_to(os.pread(progress, _POSITION_BYTES, 0))
        lines = self._tail.new_lines()
        for line in lines:
            pass_on(line)
        with contextlib.suppress(OSError):  # no space
            os.pwrite(progress, self._tail.position.ljust(_POSITION_BYTES), 0) if lines else None


def pass_on(line: str) -> None:
    """Log a line of the agent's log, if it is a warning or worse."""
    for word, level in LEVELS.items():
        _, found, message = line.partition(word)
        if found:
            if word.strip() != ANNOUNCED or not goes_to_stderr_only(_logger):
                _logger.log(level, "%s", message)
            return


def is_relayed(directory: Path) -> bool:
    """Whether a rank relays the agent's log."""
    with contextlib.suppress(OSError):
        return is_file_locked(directory / LOCK_NAME)
    return False


def relayed_position(directory: Path) -> tuple[int, int, int]:
    """Return the device and inode of the agent's log, and how much of it ranks have relayed; zeros if nothing."""
    with contextlib.suppress(OSError, ValueError):
        device, inode, read = read_part(directory / STAND_IN_LOCK_NAME, 0, _POSITION_BYTES).split()
        return int(device), int(inode), int(read)
    return 0, 0, 0


def log_position(directory: Path) -> tuple[int, int, int]:
    """Return the device, the inode and the size of the agent's log."""
    with contextlib.suppress(OSError):
        facts = os.stat(directory / LOG_NAME)
        return facts.st_dev, facts.st_ino, facts.st_size
    return 0, 0, 0
