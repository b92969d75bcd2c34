"""Files that other processes write, and perhaps other users: read without trusting what lies there.

A link, a named pipe, a device or a file without end in a job directory must not stop or fill up a process that reads
the jobs of many users. All readers open such files here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from otel_torchdist.naming import readable

_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK the open of a named pipe would wait for its other end."""
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_TOO_MANY_OPEN: Final = frozenset({errno.EMFILE, errno.ENFILE})
_PASSING: Final = _TOO_MANY_OPEN | {errno.ENOMEM, errno.EIO, errno.EINTR, errno.EAGAIN}


def open_regular(path: Path, owner: int | None = None, writable: bool = False) -> int:
    """Open a regular file; returns its descriptor.

    Args:
        path: The file. A link is refused.
        owner: The user to whom it must belong, if it is not this process's own; None for any.
        writable: Whether to open it for writing too.

    Raises:
        OSError: It cannot be opened, is no regular file, or belongs to somebody else.
    """
    file = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | _FLAGS)
    try:
        _check(os.fstat(file), owner)
    except OSError:
        os.close(file)
        raise
    return file


def read_regular(path: Path, most: int, owner: int | None = None) -> bytes:
    """All of a regular file.

    Args:
        path: See `open_regular`.
        most: Bytes that it may have.
        owner: See `open_regular`.

    Raises:
        OSError: As for `open_regular`, or it is longer.
    """
    with contextlib.closing(_File(open_regular(path, owner))) as file:
        content = file.read(0, most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return content


def read_part(path: Path, offset: int, most: int, owner: int | None = None) -> bytes:
    """What a regular file holds from `offset` on, at most `most` bytes; a negative offset counts from its end.

    Raises:
        OSError: As for `open_regular`.
    """
    with contextlib.closing(_File(open_regular(path, owner))) as file:
        start = offset if offset >= 0 else max(os.fstat(file.descriptor).st_size + offset, 0)
        return file.read(start, most)


def is_gone(error: OSError) -> bool:
    """Whether an error says that there is no such file or directory, and not only that it cannot be looked at."""
    return error.errno in _GONE


def is_passing(error: OSError) -> bool:
    """Whether the same may succeed a little later, without any change to the file."""
    return error.errno in _PASSING


def reason(error: OSError) -> str:
    """Why a file cannot be read, in one line; where descriptors are missing, what can be done about it."""
    why = error.strerror or type(error).__name__
    hint = "; a larger `ulimit -n` (LimitNOFILE= of a service) gives it more" if error.errno in _TOO_MANY_OPEN else ""
    return readable(why) + hint


class _File:
    """A descriptor, for `contextlib.closing`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, offset: int, most: int) -> bytes:
        """As `os.pread`, until there is enough or the file ends."""
        parts: list[bytes] = []
        while most > 0 and (part := os.pread(self.descriptor, most, offset)):
            parts.append(part)
            offset += len(part)
            most -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)


def _check(facts: os.stat_result, owner: int | None) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if owner is not None and facts.st_uid not in (owner, os.geteuid()):
        raise OSError(errno.EPERM, f"it belongs to user {facts.st_uid} and not to user {owner}")
