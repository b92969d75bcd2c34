"""Incidents that have been announced on a job's standard error: an agent that follows another one repeats none."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from otel_torchdist.files.others import read_regular
from otel_torchdist.files.owned import replace_at_once

NAME: Final = "announced"
MAX_INCIDENTS: Final = 64
_MAX_BYTES: Final = 1 << 14


def is_announced(directory: Path, trace_id: int) -> bool:
    """Whether the incident with this trace has been announced."""
    return f"{trace_id:032x}" in _announced(directory)


def has_announced_since(directory: Path, realtime_ns: int) -> bool:
    """Whether an incident has been announced since a time of the wall clock."""
    with contextlib.suppress(OSError):
        return (directory / NAME).stat(follow_symlinks=False).st_mtime_ns >= realtime_ns
    return False


def note_announced(directory: Path, trace_id: int) -> None:
    """Note that the incident with this trace has been announced, if there is room for that."""
    kept = [*_announced(directory)[1 - MAX_INCIDENTS :], f"{trace_id:032x}"]
    with contextlib.suppress(OSError):
        replace_at_once(directory / NAME, directory / f".{NAME}.new", "".join(f"{one}\n" for one in kept).encode())


def _announced(directory: Path) -> list[str]:
    try:
        return read_regular(directory / NAME, _MAX_BYTES).decode("ascii", "replace").split()
    except OSError:
        return []
