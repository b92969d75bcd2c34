"""Files that an agent makes beside tapes. The service of a node makes them, as root, among those of other users.

They then belong to whoever owns the directory, whose own processes use them next. No link is followed: not in place of
the file, and not in place of the directory or of the one that holds it, which their owner may swap at any moment.
Everything is therefore done relative to a directory that has been opened.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

_COMMON: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | _COMMON


def open_or_create(path: Path) -> int:
    """Open a file for reading and writing, for its owner alone where it is new; returns its descriptor.

    Raises:
        OSError: It cannot be opened, or is a link.
    """
    with _opened(path.parent) as directory:
        with contextlib.suppress(FileExistsError):
            return _create(path.name, os.O_RDWR, 0o600, directory)
        return os.open(path.name, os.O_RDWR | os.O_NONBLOCK | _COMMON, dir_fd=directory)


def create_anew(path: Path, mode: int = 0o600, below_links: bool = False) -> int:
    """Make a file in the place of whatever lies there, for writing; returns its descriptor.

    Args:
        path: The file.
        mode: Its mode.
        below_links: Whether what holds the directory is the administrator's, and may be a link.

    Raises:
        OSError: There is no room, or the directory is not ours to write to.
    """
    with _opened(path.parent, below_links) as directory:
        return _create_anew(path.name, mode, directory)


def replace_at_once(path: Path, hidden: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file by way of a hidden one beside it: whoever reads finds the old content or the new.

    Raises:
        OSError: There is no room, or the directory is gone or not ours to write to.
    """
    with _opened(path.parent) as directory:
        try:
            with open(_create_anew(hidden.name, mode, directory), "wb") as stream:
                stream.write(content)
            os.rename(hidden.name, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(hidden.name, dir_fd=directory)
            raise


def remove(path: Path) -> None:
    """Remove a file, or a link in its place; that there is none is no error.

    Raises:
        OSError: The directory is not ours to write to.
    """
    with contextlib.suppress(FileNotFoundError), _opened(path.parent) as directory:
        os.unlink(path.name, dir_fd=directory)


def make_directory(path: Path, mode: int) -> None:
    """Make a directory in a base directory, unless there is one; its mode is that, whatever the umask.

    Raises:
        OSError: It cannot be made, or there is something else.
    """
    with _opened(path.parent, below_links=True) as parent:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, mode, dir_fd=parent)
        file = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | _COMMON, dir_fd=parent)
        try:
            if os.fstat(file).st_uid == os.geteuid():
                os.fchmod(file, mode)
            _give_to_owner_of(parent, file)
        finally:
            os.close(file)


@contextlib.contextmanager
def _opened(directory: Path, below_links: bool = False) -> Generator[int]:
    """A directory that is no link, in one that is none either; above these nobody but the administrator makes one."""
    holder = os.open(directory.parent, _DIRECTORY & ~os.O_NOFOLLOW if below_links else _DIRECTORY)
    try:
        file = os.open(directory.name or ".", _DIRECTORY, dir_fd=holder)
    finally:
        os.close(holder)
    try:
        yield file
    finally:
        os.close(file)


def _create_anew(name: str, mode: int, directory: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    return _create(name, os.O_WRONLY, mode, directory)


def _create(name: str, access: int, mode: int, directory: int) -> int:
    file = os.open(name, access | _COMMON | os.O_CREAT | os.O_EXCL, mode, dir_fd=directory)
    os.fchmod(file, mode)  # whatever the umask: Prometheus reads some of them under a name of its own
    _give_to_owner_of(directory, file)
    return file


def _give_to_owner_of(directory: int, file: int) -> None:
    """Let what root has made be the user's in whose directory it lies."""
    owner = os.fstat(directory)
    if os.geteuid() == 0 != owner.st_uid and os.fstat(file).st_uid == 0:
        with contextlib.suppress(OSError):
            os.fchown(file, owner.st_uid, owner.st_gid)
