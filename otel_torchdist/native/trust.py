"""Checks whether a library may be loaded: loading runs it, and a truncated file would end the process.

`dlopen` itself does not look: it maps segments beyond the end of a truncated file, and the first access to them is a
SIGBUS.
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
"""Of a 64-bit ELF file: magic; where its section headers begin, the size of each, and how many. They come last."""
_MAGIC: Final = b"\x7fELF"
_NOBODY: Final = 65_534
"""To whom files of root seem to belong in a user namespace that lacks root, such as a container's."""


def why_not_trusted(path: Path) -> str:
    """Say why a library must not be loaded, in words that follow its path; '' if nothing speaks against it.

    It and its folder must belong to this user or root; neither they nor any folder above may be writable by others.

    Raises:
        OSError: It cannot be examined.
    """
    own = {0, os.geteuid()}
    for place in _on_the_way(path):
        status = os.lstat(place)
        is_above = place not in (path, path.parent) and not stat.S_ISREG(status.st_mode)
        if status.st_uid not in own and not (is_above and status.st_uid == _NOBODY):
            return f"may be another user's: {place} belongs to user {status.st_uid}"
        if not stat.S_ISLNK(status.st_mode) and _others_can_write(status):
            return f"may be another user's: others can write to {place}"
    return "" if _is_whole(path) else "is truncated"


def _on_the_way(path: Path) -> Iterator[Path]:
    """Yield every folder and link that a path leads through, from the root on, and the file itself."""
    place, rest = Path("/"), [*reversed(path.absolute().parts[1:])]
    yield place
    while rest:
        part = rest.pop()
        place = place.parent if part == ".." else place / part
        yield place
        if place.is_symlink():
            target = Path(os.readlink(place))
            place = Path("/") if target.is_absolute() else place.parent
            rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _others_can_write(status: os.stat_result) -> bool:
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return False  # such as /tmp: nobody can replace what belongs to others there
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _has_only_this_user(status.st_gid)


def _has_only_this_user(group_id: int) -> bool:
    """Return whether a group is this user's own, as many systems have one for each user."""
    try:
        group, user = grp.getgrgid(group_id), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == user and {*group.gr_mem} <= {user}


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        size = os.fstat(file.fileno()).st_size
    if len(head) < _HEADER.size:
        return False
    magic, begin, each, count = _HEADER.unpack(head)
    return magic != _MAGIC or 0 < begin <= size - each * count  # what is no ELF file at all, dlopen refuses by itself
