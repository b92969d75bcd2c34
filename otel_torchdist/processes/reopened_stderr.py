"""Writes a few lines to the standard error of a job, from a process that does not have it.

The file is opened anew for each text and closed at once: a pipe that stays open blocks whoever reads it to its end.
It is opened through `/proc` while a process has it as its standard error. A regular file may also be opened by its
path when all of these have gone, and is only written to while nobody writes to it at an offset of their own: a shell's
`2>file` opens it without O_APPEND, and what we append would then be overwritten.
"""

from __future__ import annotations

import contextlib
import enum
import os
import stat
from typing import Final

from otel_torchdist.job.standard_error import STDERR, StandardError, descriptor_path, open_flags
from otel_torchdist.tape.identity import process_start_ticks

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_STREAMS: Final = (1, 2)
"""Descriptors by which launchers, shells and ranks write to a log: standard output often is the same file."""
_REMOVED: Final = " (deleted)"


class NoticeDelivery(enum.Enum):
    """Result of an attempt to write."""

    DONE = "done"
    IN_USE = "in use"
    """It is a file that a process writes to without O_APPEND."""
    IMPOSSIBLE = "impossible"
    """No process has it open any more, it takes nothing now, or it is a socket, which cannot be opened again."""


def write_to(stderr: StandardError, text: bytes) -> NoticeDelivery:
    """Write to the standard error of a job. Blocks only where its file system hangs.

    Args:
        stderr: The file, as a rank of this process's own user has written it down.
        text: Whole lines, at most PIPE_BUF bytes, so that a pipe takes all of them or none.
    """
    try:
        file = _open(stderr)
    except OSError:  # ENXIO: a socket, or a pipe without a reader; EACCES: another user's process
        return NoticeDelivery.IMPOSSIBLE
    try:
        facts = os.fstat(file)
        if not _is_of(stderr, facts):
            return NoticeDelivery.IMPOSSIBLE
        if stat.S_ISREG(facts.st_mode) and _is_overwritten(stderr.path, facts):
            return NoticeDelivery.IN_USE
        os.write(file, text)
    except OSError:  # EAGAIN: a pipe is full; EPIPE: nobody reads it any more
        return NoticeDelivery.IMPOSSIBLE
    finally:
        os.close(file)
    return NoticeDelivery.DONE


def _open(stderr: StandardError) -> int:
    """Open the file through a process that has it, which also finds a removed file; else by its path.

    Raises:
        OSError: It cannot be opened.
    """
    for pid, ticks in stderr.holders:
        if process_start_ticks(pid) == ticks and _has_open(pid, STDERR, stderr.path, stderr):
            return os.open(descriptor_path(pid), _FLAGS)
    return os.open(stderr.path, _FLAGS | os.O_NOFOLLOW)


def _is_of(stderr: StandardError, facts: os.stat_result) -> bool:
    return (facts.st_dev, facts.st_ino) == (stderr.device, stderr.inode)


def _has_open(pid: int, descriptor: int, path: str, stderr: StandardError) -> bool:
    return (facts := _facts(pid, descriptor, path)) is not None and _is_of(stderr, facts)


def _is_overwritten(path: str, file: os.stat_result) -> bool:
    """Whether a process has a file as its standard output or error without O_APPEND."""
    for name in os.listdir("/proc"):
        for descriptor in _STREAMS if name.isdigit() else ():
            facts = _facts(int(name), descriptor, path)
            if facts is None or not os.path.samestat(facts, file):
                continue
            with contextlib.suppress(OSError):  # closed meanwhile
                if not open_flags(int(name), descriptor) & os.O_APPEND:
                    return True
    return False


def _facts(pid: int, descriptor: int, path: str) -> os.stat_result | None:
    """Return the facts of the file behind a descriptor if it has this path; None for others, which may hang."""
    try:
        place = descriptor_path(pid, descriptor)
        is_same = os.readlink(place).removesuffix(_REMOVED) == path.removesuffix(_REMOVED)
        return os.stat(place) if is_same else None
    except OSError:  # it is gone, or another user's
        return None
