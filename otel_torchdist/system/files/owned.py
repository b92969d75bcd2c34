"""Creates the files that an agent keeps beside tapes. A node service does so as root, in other users' directories.

A new file is given to the owner of its directory, whose processes read it. Neither the file nor its directory nor the
directory's parent may be a link, because their owner may swap them at any moment. So all functions work relative to an
open directory. The directory must belong to this process's user, or to the user that the caller names.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

_SAFE_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | _SAFE_FLAGS


def directory_facts(directory: Path) -> os.stat_result:
    """Return the status of a directory: owner, device and inode.

    Raises:
        OSError: There is no such directory, or it or its parent is a link.
    """
    with _opened(directory, None) as file:
        return os.fstat(file)


def open_or_create(path: Path, owner: int | None = None) -> int:
    """Open a file for reading and writing, and create it for its owner alone if missing; return its descriptor.

    Args:
        path: The file.
        owner: The user who must own the directory; None for this process's user.

    Raises:
        OSError: The file cannot be opened, or is a link.
    """
    with _opened(path.parent, _user(owner)) as directory:
        with contextlib.suppress(FileExistsError):
            return _create(path.name, os.O_RDWR, 0o600, directory)
        return os.open(path.name, os.O_RDWR | os.O_NONBLOCK | _SAFE_FLAGS, dir_fd=directory)


def create_anew(path: Path, mode: int = 0o600, parent_may_be_link: bool = False) -> int:
    """Create a file for writing, and replace any existing one; return its descriptor.

    Args:
        path: The file.
        mode: Its permissions.
        parent_may_be_link: Whether the directory's parent may be a link, because it belongs to the administrator.

    Raises:
        OSError: No space is left, or the directory is not writable.
    """
    with _opened(path.parent, os.geteuid(), parent_may_be_link) as directory:
        return _create_anew(path.name, mode, directory)


def replace_at_once(
    path: Path, hidden: Path, content: bytes, mode: int = 0o600, owner: int | None = None, accept_own: bool = False
) -> None:
    """Replace a file atomically: readers see either the old or the new content.

    Args:
        path: The file.
        hidden: Temporary file beside it.
        content: The new content.
        mode: Its permissions.
        owner: The user who must own the directory; None for this process's user.
        accept_own: Whether the directory may belong to this process's user instead.

    Raises:
        OSError: No space is left, or the directory is gone or not writable.
    """
    with _opened(path.parent, _user(owner), accept_own=accept_own) as directory:
        try:
            with open(_create_anew(hidden.name, mode, directory), "wb") as stream:
                stream.write(content)
            os.rename(hidden.name, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(hidden.name, dir_fd=directory)
            raise


def remove(path: Path, owner: int | None = None, accept_own: bool = False) -> None:
    """Remove a file, or a link in its place; a missing file is not an error.

    Args:
        path: The file.
        owner: See `replace_at_once`.
        accept_own: See `replace_at_once`.

    Raises:
        OSError: The directory is not writable.
    """
    with (
        contextlib.suppress(FileNotFoundError),
        _opened(path.parent, _user(owner), accept_own=accept_own) as directory,
    ):
        os.unlink(path.name, dir_fd=directory)


def make_directory(path: Path, mode: int, owner: int | None = None) -> None:
    """Create a directory in a base directory unless it exists, and set its permissions regardless of the umask.

    Args:
        path: The directory.
        mode: Its permissions.
        owner: The user who must own the base directory, unless this process's user does.

    Raises:
        OSError: The directory cannot be created, or the path is not a directory.
    """
    with _opened(path.parent, _user(owner), parent_may_be_link=True, accept_own=True) as parent:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, mode, dir_fd=parent)
        file = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | _SAFE_FLAGS, dir_fd=parent)
        try:
            if os.fstat(file).st_uid == os.geteuid():
                os.fchmod(file, mode)
            _give_to_owner_of(parent, file)
        finally:
            os.close(file)


def _user(owner: int | None) -> int:
    return os.geteuid() if owner is None else owner


@contextlib.contextmanager
def _opened(
    directory: Path, owner: int | None, parent_may_be_link: bool = False, accept_own: bool = False
) -> Generator[int]:
    """Open a directory; neither it nor its parent may be a link. Links above the parent are trusted.

    The directory must belong to `owner`, unless that is None.
    """
    parent = os.open(directory.parent, _DIRECTORY_FLAGS & ~os.O_NOFOLLOW if parent_may_be_link else _DIRECTORY_FLAGS)
    try:
        file = os.open(directory.name or ".", _DIRECTORY_FLAGS, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        actual = os.fstat(file).st_uid
        if owner is not None and actual != owner and not (accept_own and actual == os.geteuid()):
            raise OSError(errno.EPERM, f"its directory belongs to user {actual} and not to user {owner}")
        yield file
    finally:
        os.close(file)


def _create_anew(name: str, mode: int, directory: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    return _create(name, os.O_WRONLY, mode, directory)


def _create(name: str, access: int, mode: int, directory: int) -> int:
    file = os.open(name, access | _SAFE_FLAGS | os.O_CREAT | os.O_EXCL, mode, dir_fd=directory)
    os.fchmod(file, mode)  # regardless of the umask: Prometheus reads some files as another user
    _give_to_owner_of(directory, file)
    return file


def _give_to_owner_of(directory: int, file: int) -> None:
    """Give a file created by root to the owner of its directory."""
    owner = os.fstat(directory)
    if os.geteuid() == 0 != owner.st_uid and os.fstat(file).st_uid == 0:
        with contextlib.suppress(OSError):
            os.fchown(file, owner.st_uid, owner.st_gid)
