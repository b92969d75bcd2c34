"""Small files in a job directory by which an agent tells the launcher, and the next agent, what has been said."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.files.owned import replace_at_once

# --- announced incidents ----------------------------------------------------------------------------------------------
# Incidents that have been announced on a job's standard error: an agent that follows another one repeats none.


_ANNOUNCED: Final = "announced"
MAX_INCIDENTS: Final = 64
_MAX_ANNOUNCED_BYTES: Final = 1 << 14


def is_announced(directory: Path, trace_id: int) -> bool:
    """Whether the incident with this trace has been announced."""
    return f"{trace_id:032x}" in _announced(directory)


def has_announced_since(directory: Path, realtime_ns: int) -> bool:
    """Whether an incident has been announced since a time of the wall clock."""
    with contextlib.suppress(OSError):
        return (directory / _ANNOUNCED).stat(follow_symlinks=False).st_mtime_ns >= realtime_ns
    return False


def note_announced(directory: Path, trace_id: int) -> None:
    """Note that the incident with this trace has been announced, if there is room for that."""
    kept = [*_announced(directory)[1 - MAX_INCIDENTS :], f"{trace_id:032x}"]
    with contextlib.suppress(OSError):
        replace_at_once(
            directory / _ANNOUNCED, directory / f".{_ANNOUNCED}.new", "".join(f"{one}\n" for one in kept).encode()
        )


def _announced(directory: Path) -> list[str]:
    try:
        return read_regular(directory / _ANNOUNCED, _MAX_ANNOUNCED_BYTES).decode("ascii", "replace").split()
    except OSError:
        return []


# --- concluded attempts -----------------------------------------------------------------------------------------------
# The newest attempt of a job that its agent has concluded: everything on it has been said, and written down.
# A launcher whose ranks have failed waits a moment for that; see `launch_end`.


_CONCLUDED: Final = "concluded"
_MAX_CONCLUDED_BYTES: Final = 32


def note_concluded(directory: Path, created_ns: int, owner: int | None = None) -> None:
    """Note that an attempt has been concluded.

    Args:
        directory: The job directory.
        created_ns: When the newest tape of the attempt was created, by the monotonic clock.
        owner: The user who must own the directory; None for this process's user.
    """
    with contextlib.suppress(OSError):
        replace_at_once(directory / _CONCLUDED, directory / f".{_CONCLUDED}.new", b"%d\n" % created_ns, owner=owner)


def concluded_ns(directory: Path) -> int:
    """Return when the newest tape of the newest concluded attempt was created; 0 if none has been concluded."""
    with contextlib.suppress(OSError, ValueError):
        return int(read_regular(directory / _CONCLUDED, _MAX_CONCLUDED_BYTES))
    return 0


# --- notices for the launcher -----------------------------------------------------------------------------------------
# Notices that an agent cannot write to the job's standard error itself, and leaves for the launcher.
# The launcher has that descriptor, whatever it is: a socket, which nobody can open again, a file that it writes to at
# an offset of its own, or another user's. The process that takes a text away, the launcher or the agent that has left
# it, is the only one to write it.


MAX_NOTICE_BYTES: Final = 4096
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
    name = _notice_name(trace_id)
    replace_at_once(directory / name, directory / f".{name}.new", text, owner=owner)


def take_notice(directory: Path, trace_id: int) -> bytes:
    """Take the notice on an incident away; empty if there is none, or another process has taken it."""
    return _take(directory, _notice_name(trace_id))


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
        text = read_regular(taken, MAX_NOTICE_BYTES)
        taken.unlink()
        return text
    return b""


def _notice_name(trace_id: int) -> str:
    return f"{_PREFIX}{trace_id:032x}"
