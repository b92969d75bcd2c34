"""Small files in a job directory with which an agent tells the launcher and the next agent what it has announced."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.files.owned import replace_at_once

# --- announced incidents ----------------------------------------------------------------------------------------------
# Incidents that have been announced on a job's standard error, so that the next agent does not repeat them.


_ANNOUNCED: Final = "announced"
MAX_INCIDENTS: Final = 64
_MAX_ANNOUNCED_BYTES: Final = 1 << 14


def is_announced(directory: Path, trace_id: int) -> bool:
    """Return whether the incident with this trace id has been announced."""
    return f"{trace_id:032x}" in _announced(directory)


def has_announced_since(directory: Path, realtime_ns: int) -> bool:
    """Return whether an incident has been announced since a wall clock time."""
    with contextlib.suppress(OSError):
        return (directory / _ANNOUNCED).stat(follow_symlinks=False).st_mtime_ns >= realtime_ns
    return False


def note_announced(directory: Path, trace_id: int) -> None:
    """Note that the incident with this trace id has been announced; does nothing if the file cannot be written."""
    kept = [*_announced(directory)[1 - MAX_INCIDENTS :], f"{trace_id:032x}"]
    with contextlib.suppress(OSError):
        content = "".join(f"{trace}\n" for trace in kept).encode()
        replace_at_once(directory / _ANNOUNCED, directory / f".{_ANNOUNCED}.new", content)


def _announced(directory: Path) -> list[str]:
    try:
        return read_regular(directory / _ANNOUNCED, _MAX_ANNOUNCED_BYTES).decode("ascii", "replace").split()
    except OSError:
        return []


# --- concluded attempts -----------------------------------------------------------------------------------------------
# The newest attempt of a job that its agent has concluded: all its verdicts have been announced and recorded.
# A launcher whose ranks have failed waits a moment for this note; see `launch_end`.


_CONCLUDED: Final = "concluded"
_MAX_CONCLUDED_BYTES: Final = 32


def note_concluded(directory: Path, created_ns: int, owner: int | None = None) -> None:
    """Note that an attempt has been concluded.

    Args:
        directory: The job directory.
        created_ns: Monotonic time at which the newest tape of the attempt was created.
        owner: The user who must own the directory; None for this process's user.
    """
    with contextlib.suppress(OSError):
        replace_at_once(directory / _CONCLUDED, directory / f".{_CONCLUDED}.new", b"%d\n" % created_ns, owner=owner)


def concluded_ns(directory: Path) -> int:
    """Return the monotonic time at which the newest tape of the newest concluded attempt was created; 0 if none."""
    with contextlib.suppress(OSError, ValueError):
        return int(read_regular(directory / _CONCLUDED, _MAX_CONCLUDED_BYTES))
    return 0


_BUNDLED: Final = "bundled"


def note_bundled(directory: Path, created_ns: int) -> None:
    """Note that the bundle of an ended attempt is written, or cannot be; `created_ns` as for `note_concluded`."""
    with contextlib.suppress(OSError):
        replace_at_once(directory / _BUNDLED, directory / f".{_BUNDLED}.new", b"%d\n" % created_ns)


def bundled_ns(directory: Path) -> int:
    """Return the creation time of the newest attempt with that note, as `concluded_ns` does; 0 if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int(read_regular(directory / _BUNDLED, _MAX_CONCLUDED_BYTES))
    return 0


# --- notices for the launcher -----------------------------------------------------------------------------------------
# Notices that an agent cannot write to the job's standard error, and leaves for the launcher.
# The launcher has that descriptor open, even if the agent cannot open it: a socket, a file written to without O_APPEND,
# or another user's file. Only the process that takes a notice writes it: the launcher, or the agent that left it.


MAX_NOTICE_BYTES: Final = 4096
MAX_NOTICES: Final = 8
_PREFIX: Final = "notice-"
_TAKEN: Final = ".taken-"


def leave_notice(directory: Path, trace_id: int, text: bytes, owner: int | None = None) -> None:
    """Leave the notice on an incident in a job directory.

    Args:
        directory: The job directory.
        trace_id: Trace id of the incident.
        text: Whole lines.
        owner: The user who must own the directory; None for this process's user.

    Raises:
        OSError: No space is left, or the directory is gone.
    """
    name = _notice_name(trace_id)
    replace_at_once(directory / name, directory / f".{name}.new", text, owner=owner)


def take_notice(directory: Path, trace_id: int) -> bytes:
    """Remove and return the notice on an incident; empty if there is none, or another process has taken it."""
    return _take(directory, _notice_name(trace_id))


def take_notices(directory: Path) -> list[bytes]:
    """Remove and return all notices in a job directory."""
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
