"""Brings what the agent warns of into the log of the training, where people look first.

The agent writes to a file in the job directory. One rank of the node, whichever takes the lock, passes its warnings
on; when that rank is gone the next one goes on where it was itself when it looked last. While that rank is there and
does not look, for something holds its GIL, another one stands in for it: it may be the very rank that is warned of.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

from otel_torchdist.files.locks import is_locked_elsewhere, try_lock, unlock

LOG_NAME: Final = "agent.log"
LOCK_NAME: Final = "relay.lock"
STAND_IN_LOCK_NAME: Final = "relay.stand-in.lock"
SILENT_LOOKS: Final = 4
"""Looks, one a second, without a sign of the rank whose part it is."""
LEVELS: Final = {" WARNING ": logging.WARNING, " ERROR ": logging.ERROR, " CRITICAL ": logging.CRITICAL}
"""As they stand in a line of the agent's log, behind the time."""
MAX_BYTES: Final = 65_536
"""Read at once; what is beyond can be found in the file."""

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_TAIL_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_logger = logging.getLogger("otel_torchdist")


class LogTail:
    """What is added to a log file, line by line. Belongs to one thread.

    The file stays open: whoever removes it, and the directory around it, removes a name only, and the agent writes on.
    """

    def __init__(self, path: Path) -> None:
        """Begin at the present end of the file, which need not exist yet."""
        self.path = path
        self._file: int | None = None
        self._read: int = 0
        self.pass_over()

    def new_lines(self) -> list[str]:
        """Whole lines that have been added since the last call; of very much only the end."""
        begin, size = self._advance()
        if size <= begin or self._file is None:
            return []
        with contextlib.suppress(OSError):
            first = max(begin, size - MAX_BYTES)
            text = os.pread(self._file, size - first, first)
            whole = text[: text.rfind(b"\n") + 1]
            self._read -= len(text) - len(whole)
            return whole.decode(errors="replace").splitlines()
        return []

    def pass_over(self) -> None:
        """Leave out what has been added since the last call."""
        self._advance()

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _advance(self) -> tuple[int, int]:
        self._open_newest()
        size = os.fstat(self._file).st_size if self._file is not None else 0
        begin, self._read = self._read, size
        return begin, size

    def _open_newest(self) -> None:
        """Open the file, unless it is open; another one after it was rotated."""
        try:
            if self._file is not None and os.path.samestat(os.stat(self.path), os.fstat(self._file)):
                return
            newest = os.open(self.path, _TAIL_FLAGS)
        except OSError:
            return
        self.close()
        self._file, self._read = newest, 0


class LogRelay:
    """Passes on what the agent of a job directory warns of. Belongs to one thread."""

    def __init__(self, directory: Path) -> None:
        """Follow the log in a job directory from its present end on."""
        self.path = directory / LOG_NAME
        self._tail = LogTail(self.path)
        self._lock = os.open(directory / LOCK_NAME, _FLAGS, 0o600)
        self._stand_in_lock = os.open(directory / STAND_IN_LOCK_NAME, _FLAGS, 0o600)
        self._is_ours = False
        self._stands_in = False
        self._sign = 0
        self._looks_without_sign = 0

    def pass_on(self) -> None:
        """Log what has been added since the last call, if that is this process's part."""
        self._is_ours = self._is_ours or try_lock(self._lock)
        if self._is_ours:
            self._do_our_part()
        elif self._has_new_sign():
            self._tell() if self._stands_in else self._tail.pass_over()
            self._stop_standing_in()
        elif self._looks_without_sign >= SILENT_LOOKS:
            self._stands_in = self._stands_in or try_lock(self._stand_in_lock)
            if self._stands_in:
                self._tell()

    def close(self) -> None:
        """Leave it to another rank."""
        self.pass_on()
        self._tail.close()
        os.close(self._lock)
        os.close(self._stand_in_lock)

    def _do_our_part(self) -> None:
        os.utime(self._lock)  # a sign that we look
        self._stop_standing_in()
        if is_locked_elsewhere(self._stand_in_lock):
            self._tail.pass_over()  # by who stood in for us, and does so until it sees the sign
        else:
            self._tell()

    def _has_new_sign(self) -> bool:
        before, self._sign = self._sign, os.fstat(self._lock).st_mtime_ns
        self._looks_without_sign = 0 if self._sign != before else self._looks_without_sign + 1
        return self._looks_without_sign == 0

    def _stop_standing_in(self) -> None:
        if self._stands_in:
            unlock(self._stand_in_lock)
        self._stands_in = False

    def _tell(self) -> None:
        for line in self._tail.new_lines():
            pass_on(line)


def pass_on(line: str) -> None:
    """Log a line of the agent's log, if it is a warning or worse."""
    for word, level in LEVELS.items():
        _, found, message = line.partition(word)
        if found:
            _logger.log(level, "%s", message)
            return
