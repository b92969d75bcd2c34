"""The newest attempt of a job that its agent has concluded: everything on it has been said, and written down.

A launcher whose ranks have failed waits a moment for that; see `launch_end`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from otel_torchdist.files.others import read_regular
from otel_torchdist.files.owned import replace_at_once

NAME: Final = "concluded"
_MAX_BYTES: Final = 32


def note_concluded(directory: Path, created_ns: int, owner: int | None = None) -> None:
    """Note that an attempt has been concluded.

    Args:
        directory: The job directory.
        created_ns: When the newest tape of the attempt was created, by the monotonic clock.
        owner: The user who must own the directory; None for this process's user.
    """
    with contextlib.suppress(OSError):
        replace_at_once(directory / NAME, directory / f".{NAME}.new", b"%d\n" % created_ns, owner=owner)


def concluded_ns(directory: Path) -> int:
    """Return when the newest tape of the newest concluded attempt was created; 0 if none has been concluded."""
    with contextlib.suppress(OSError, ValueError):
        return int(read_regular(directory / NAME, _MAX_BYTES))
    return 0
