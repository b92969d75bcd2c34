"""Notices that an agent cannot write to the job's standard error itself, and leaves for the launcher.

The launcher has that descriptor, whatever it is: a socket, which nobody can open again, a file that it writes to at an
offset of its own, or another user's. The process that takes a text away, the launcher or the agent that has left it, is
the only one to write it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from otel_torchdist.files.others import read_regular
from otel_torchdist.files.owned import replace_at_once

MAX_BYTES: Final = 4096
"""Bytes of a notice."""
MAX_NOTICES: Final = 8
_PREFIX: Final = "notice-"
_TAKEN: Final = ".taken-"


def leave_notice(directory: Path, trace_id: int, text: bytes, owner: int | None = None) -> None:
    """Leave the notice on an incident in a job directory.

    Args:
        directory: The job directory.
        trace_id: Trace of the incident.
        text: Whole lines.
        owner: The user who must own the directory; None for this process's user.

    Raises:
        OSError: There is no room, or the directory is gone.
    """
    name = _name(trace_id)
    replace_at_once(directory / name, directory / f".{name}.new", text, owner=owner)


def take_notice(directory: Path, trace_id: int) -> bytes:
    """Take the notice on an incident away; empty if there is none, or another process has taken it."""
    return _take(directory, _name(trace_id))


def take_notices(directory: Path) -> list[bytes]:
    """Take all notices in a job directory away."""
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listdir(directory) if name.startswith(_PREFIX))[:MAX_NOTICES]
        return [text for name in names if (text := _take(directory, name))]
    return []


def _take(directory: Path, name: str) -> bytes:
    taken = directory / f"{_TAKEN}{name}"
    with contextlib.suppress(OSError):
        (directory / name).rename(taken)
        text = read_regular(taken, MAX_BYTES)
        taken.unlink()
        return text
    return b""


def _name(trace_id: int) -> str:
    return f"{_PREFIX}{trace_id:032x}"
