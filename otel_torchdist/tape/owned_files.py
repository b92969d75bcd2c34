"""Files that an agent makes beside tapes. The service of a node makes them, as root, among those of other users.

They then belong to whoever owns the directory, whose own processes use them next, and no link of theirs is followed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_COMMON: Final = os.O_CLOEXEC | os.O_NOFOLLOW


def open_or_create(path: Path) -> int:
    """Open a file for reading and writing, for its owner alone where it is new; returns its descriptor.

    Raises:
        OSError: It cannot be opened, or is a link.
    """
    with contextlib.suppress(FileExistsError):
        return _create(path, os.O_RDWR, 0o600)
    return os.open(path, os.O_RDWR | _COMMON)


def create_anew(path: Path, mode: int = 0o600) -> int:
    """Make a file in the place of whatever lies there, for writing; returns its descriptor.

    Raises:
        OSError: There is no room, or the directory is not ours to write to.
    """
    path.unlink(missing_ok=True)
    return _create(path, os.O_WRONLY, mode)


def replace_at_once(path: Path, hidden: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file by way of a hidden one beside it: whoever reads finds the old content or the new.

    Raises:
        OSError: There is no room, or the directory is gone or not ours to write to.
    """
    try:
        with open(create_anew(hidden, mode), "wb") as stream:
            stream.write(content)
        hidden.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise


def make_directory(path: Path, mode: int) -> None:
    """Make a directory, unless there is one; its mode is that, whatever the umask.

    Raises:
        OSError: It cannot be made, or there is something else.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode)
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _COMMON)
    try:
        if os.fstat(file).st_uid == os.geteuid():
            os.fchmod(file, mode)
        _give_to_owner_of(path.parent, file)
    finally:
        os.close(file)


def _create(path: Path, access: int, mode: int) -> int:
    file = os.open(path, access | _COMMON | os.O_CREAT | os.O_EXCL, mode)
    os.fchmod(file, mode)  # whatever the umask: Prometheus reads some of them under a name of its own
    _give_to_owner_of(path.parent, file)
    return file


def _give_to_owner_of(directory: Path, file: int) -> None:
    """Let what root has made be the user's in whose directory it lies."""
    owner = os.stat(directory)
    if os.geteuid() == 0 != owner.st_uid and os.fstat(file).st_uid == 0:
        with contextlib.suppress(OSError):
            os.fchown(file, owner.st_uid, owner.st_gid)
