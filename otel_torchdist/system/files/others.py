"""Reads files that other processes, and possibly other users, have written, without trusting them.

A link, a named pipe, a device or an endless file in a job directory must not block a process that reads the jobs of
many users, or exhaust its memory. All readers open such files with this module.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from otel_torchdist.model.text import readable

_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK, opening a named pipe would wait for its other end."""
_MIN_READ_BYTES: Final = 64 << 10
"""Minimum size of a read. Files in /proc have the size 0."""
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_TOO_MANY_OPEN: Final = frozenset({errno.EMFILE, errno.ENFILE})
_TRANSIENT: Final = _TOO_MANY_OPEN | {errno.ENOMEM, errno.EIO, errno.EINTR, errno.EAGAIN}


def open_regular(path: Path, owner: int | None = None, writable: bool = False) -> int:
    """Open a regular file; return its descriptor.

    Args:
        path: The file. A link is refused.
        owner: The user who must own the file, or its directory if this process's user owns the file; None for any.
        writable: Whether to open it for writing too.

    Raises:
        OSError: The file cannot be opened, is not a regular file, or belongs to another user.
    """
    flags = (os.O_RDWR if writable else os.O_RDONLY) | _FLAGS
    if owner is None:
        return _checked(os.open(path, flags))
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        directory_owner = os.fstat(directory).st_uid
        return _checked(os.open(path.name, flags, dir_fd=directory), owner, directory_owner)
    finally:
        os.close(directory)


def read_regular(path: Path, max_bytes: int, owner: int | None = None) -> bytes:
    """Read a whole regular file.

    Args:
        path: See `open_regular`.
        max_bytes: Maximum size of the file in bytes.
        owner: See `open_regular`.

    Raises:
        OSError: As for `open_regular`, or the file is larger.
    """
    with contextlib.closing(_File(open_regular(path, owner))) as file:
        content = file.read(0, max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes")
    return content


def read_part(path: Path, offset: int, max_bytes: int, owner: int | None = None) -> bytes:
    """Read at most `max_bytes` of a regular file from `offset` on; a negative offset counts from its end.

    Raises:
        OSError: As for `open_regular`.
    """
    with contextlib.closing(_File(open_regular(path, owner))) as file:
        start = offset if offset >= 0 else max(os.fstat(file.descriptor).st_size + offset, 0)
        return file.read(start, max_bytes)


def changed_ns(path: Path) -> int:
    """Return the modification time of a file, in nanoseconds since the epoch; 0 if unknown. Links are not followed."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def is_gone(error: OSError) -> bool:
    """Return whether an error means that the file or directory does not exist, rather than that it is inaccessible."""
    return error.errno in _GONE


def is_transient(error: OSError) -> bool:
    """Return whether an error is transient: a retry may succeed without any change to the file."""
    return error.errno in _TRANSIENT


def reason(error: OSError) -> str:
    """Return the reason of an error in one line, with a remedy if the process is out of descriptors."""
    text = error.strerror or type(error).__name__
    hint = (
        "; a larger `ulimit -n` (LimitNOFILE= of a service) raises that limit" if error.errno in _TOO_MANY_OPEN else ""
    )
    return readable(text) + hint


class _File:
    """A descriptor, for `contextlib.closing`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Read as `os.pread` does, repeatedly, until `max_bytes` are read or the file ends."""
        parts: list[bytes] = []
        # `pread` allocates the requested size at once, which may be more memory than is available.
        expected = max(os.fstat(self.descriptor).st_size - offset, 0) + 1
        while max_bytes > 0 and (
            part := os.pread(self.descriptor, min(max_bytes, max(expected, _MIN_READ_BYTES)), offset)
        ):
            parts.append(part)
            offset += len(part)
            max_bytes -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)


def _checked(file: int, owner: int | None = None, directory_owner: int | None = None) -> int:
    """Return a descriptor if it refers to a regular file of this owner; else close it and raise.

    A file of this process's user also counts if `owner` owns its directory: a node service without CAP_CHOWN creates
    such files.
    """
    info = os.fstat(file)
    problem = None
    if not stat.S_ISREG(info.st_mode):
        problem = OSError(errno.EINVAL, "not a regular file")
    elif owner not in (None, info.st_uid) and not (info.st_uid == os.geteuid() and directory_owner == owner):
        problem = OSError(errno.EPERM, f"it belongs to user {info.st_uid} and not to user {owner}")
    if problem is None:
        return file
    os.close(file)
    raise problem
