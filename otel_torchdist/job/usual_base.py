"""Where tapes are in /dev/shm: the usual base directory of a user, and the one beside it if another user has its name.

Everyone may create directories in /dev/shm, and the usual name is known beforehand. A container engine that mounts the
directory creates it as root; somebody else may do so out of malice. The substitute has 64 random bits in its name, so
that nobody can be there first, and is found again by its owner.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Final

from otel_torchdist.files.locks import alone_in

MEMORY: Final = Path("/dev/shm")
USUAL_BASES: Final = re.compile("otel-torchdist-[0-9]{1,10}(?:-[0-9a-f]{16})?")
"""The names of base directories in `/dev/shm`, at least one per user."""
TAKEN: Final = (
    "%s belongs to another user: tapes are in %s instead. Agents, `watch` and `diagnose` find them there, Prometheus "
    "only if its `file_sd_configs` name that directory"
)
_MOST_TURNS_S: Final = 1.0
_RETRY_S: Final = 0.002
_MOMENT_S: Final = 1.0


def usual_base() -> Path:
    """Return the usual base directory of this process's user."""
    return MEMORY / f"otel-torchdist-{os.getuid()}"


def is_taken(base: Path) -> bool:
    """Whether another user has something in the place of the usual base directory."""
    with contextlib.suppress(OSError):
        return base == usual_base() and base.lstat().st_uid != os.geteuid()
    return False


def substitute(base: Path) -> Path | None:
    """Return the directory that this user has in place of a base directory; None if there is none."""
    wanted = re.compile(f"{re.escape(base.name)}-[0-9a-f]{{16}}")
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(base.parent) as entries:
        for entry in entries:
            if wanted.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        found.append(entry.name)
    return base.parent / min(found) if found else None


def make_substitute(base: Path) -> Path:
    """Return the directory in place of a base directory, created if missing. All ranks of a node get the same one.

    They take turns by a lock on /dev/shm. Everybody can hold that: without it, all take the first of those that have
    been created within a moment.

    Raises:
        OSError: It cannot be created.
    """
    deadline = time.monotonic() + _MOST_TURNS_S
    while True:
        with alone_in(base.parent) as alone:
            if alone or time.monotonic() > deadline:
                known = substitute(base)
                if known is not None:
                    return known
                made = base.with_name(f"{base.name}-{os.urandom(8).hex()}")
                made.mkdir(0o700)
                if alone:
                    return made
                time.sleep(_MOMENT_S)
                return substitute(base) or made
        time.sleep(_RETRY_S)
