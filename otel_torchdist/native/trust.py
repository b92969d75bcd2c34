"""Checks whether a library may be loaded: its owner, permissions and completeness. Loading a library runs its code.

`dlopen` does not check for truncation: it maps segments beyond the end of the file, and the first access raises SIGBUS.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct("<4s36xQ10xHH2x")
"""Header of a 64-bit ELF file: magic; offset, size and number of the section headers, which are last in the file."""
_MAGIC: Final = b"\x7fELF"
_NOBODY: Final = 65_534
"""Apparent owner of root's files in a user namespace without root, such as a container's."""


def why_not_trusted(path: Path) -> str:
    """Return why a library must not be loaded, as a text that follows its path; '' if it may be loaded.

    The file and its folder must belong to this user or root. Others must not be able to write to them or to any folder
    above.

    Raises:
        OSError: The file cannot be examined.
    """
    trusted = {0, os.geteuid()}
    for component in _components_of(path):
        status = os.lstat(component)
        is_above = component not in (path, path.parent) and not stat.S_ISREG(status.st_mode)
        if status.st_uid not in trusted and not (is_above and status.st_uid == _NOBODY):
            return f"may be another user's: {component} belongs to user {status.st_uid}"
        if not stat.S_ISLNK(status.st_mode) and _others_can_write(status):
            return f"may be another user's: others can write to {component}"
    return "" if _is_complete(path) else "is truncated"


def _components_of(path: Path) -> Iterator[Path]:
    """Yield every folder and link that resolving a path visits, from the root, and the file."""
    component, parts = Path("/"), [*reversed(path.absolute().parts[1:])]
    yield component
    while parts:
        part = parts.pop()
        component = component.parent if part == ".." else component / part
        yield component
        if component.is_symlink():
            target = Path(os.readlink(component))
            component = Path("/") if target.is_absolute() else component.parent
            parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _others_can_write(status: os.stat_result) -> bool:
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return False  # such as /tmp: nobody can replace the files of others there
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _has_only_this_user(status.st_gid)


def _has_only_this_user(group_id: int) -> bool:
    """Return whether a group has no members but this user. Many systems have a group for each user."""
    try:
        group, user = grp.getgrgid(group_id), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == user and {*group.gr_mem} <= {user}


def _is_complete(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        size = os.fstat(file.fileno()).st_size
    if len(head) < _HEADER.size:
        return False
    magic, offset, entry_size, count = _HEADER.unpack(head)
    return magic != _MAGIC or 0 < offset <= size - entry_size * count  # dlopen rejects other files than ELF itself
