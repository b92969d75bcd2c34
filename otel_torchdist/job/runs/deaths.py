"""The death of a rank as seen by its node's agent: a small file beside the tape, for later readers."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, cast

from otel_torchdist.files.others import read_regular
from otel_torchdist.files.owned import replace_at_once
from otel_torchdist.naming import readable

MAX_FILE_BYTES: Final = 4096
MAX_ERROR: Final = 200
"""Characters of an exception that are kept."""
BY_CGROUP: Final = "cgroup"
BY_NODE: Final = "node"
_MAX_INT: Final = 1 << 63
_STATES: Final = ("", "T", "t", "D")
_OOM: Final = ("", BY_CGROUP, BY_NODE)


CRASHES: Final = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that a process raises itself when it crashes."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a rank's process.

    Attributes:
        at_ns: When it ended, by the monotonic clock; no two deaths seen by one agent have the same time.
        resolution_ns: How much later than the actual end that may be; 0 if the kernel gave the order of the ends.
        status: Its wait status, as returned by `os.wait`; None when not known.
        oom: Which counter recorded an out-of-memory kill then: `cgroup` (the rank's own), `node`, or '' for neither.
        stopped: State letter (see `/proc/<pid>/stat`) if it was not running when last checked; '' if it was.
        stopped_since_ns: Since when it was in that state; 0 if it was running.
        ran_ns: When it was last seen to run without a heartbeat, according to the kernel; 0 for never.
        with_others: Whether other processes of the job that a signal had killed were on their way to their end already.
        outlives_request: Whether SIGTERM alone would not have ended it: its program handles, ignores or blocks it.
        launcher: The name of its parent process.
        error: Type and first line of the exception that ended it, from torchelastic's error file; '' if not known.
        asked: The signal that had asked it to end before; 0 for none that was recorded. Not in the file.
        asked_ns: When that came.
    """

    at_ns: int
    resolution_ns: int = 0
    status: int | None = None
    oom: str = ""
    stopped: str = ""
    stopped_since_ns: int = 0
    ran_ns: int = 0
    with_others: bool = False
    outlives_request: bool = False
    launcher: str = ""
    error: str = ""
    asked: int = 0
    asked_ns: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether its order among other exact deaths on its node comes from the kernel."""
        return self.resolution_ns == 0

    @property
    def signal(self) -> int:
        """The signal that killed it; 0 when none did, or when that is not known."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else 0

    @property
    def signal_name(self) -> str:
        """The name of that signal, such as `SIGKILL`; '' when no signal killed it."""
        return name_signal(self.signal) if self.signal else ""

    @property
    def exit_code(self) -> int | None:
        """The code with which it exited; None when it did not exit, or when that is not known."""
        return os.WEXITSTATUS(self.status) if self.status is not None and os.WIFEXITED(self.status) else None

    @property
    def exited_in_error(self) -> bool:
        """Whether it exited with an error code; codes from 128 on state a signal, which the program has handled."""
        return self.exit_code is not None and 0 < self.exit_code < 128

    @property
    def crashed_at_exit(self) -> bool:
        """Of a rank whose script was done: whether it crashed while its libraries were unloaded.

        A program that handles SIGTERM may have been asked to end before.
        """
        return self.signal in CRASHES and not self.outlives_request


def name_signal(number: int) -> str:
    """The name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def death_path(tape: Path) -> Path:
    """Return the path of the death file beside a tape."""
    return tape.with_suffix(".death")


def write_death(tape: Path, death: Death, owner: int | None = None) -> None:
    """Write the death file, replacing what was known before.

    Args:
        tape: The tape.
        death: The death of its writer.
        owner: The user who must own the directory; None for this process's user.

    Raises:
        OSError: There is no room, or the directory is gone.
    """
    content = json.dumps({"nonce": tape.stem, **asdict(death)}).encode()
    replace_at_once(death_path(tape), tape.with_name(f".{tape.stem}.death.new"), content, owner=owner)


def read_death(tape: Path, owner: int | None = None) -> Death | None:
    """Read the death file; None when there is none, or it holds something else.

    Args:
        tape: The tape.
        owner: The user who must own the file; None for any.
    """
    try:
        return _death_from(json.loads(read_regular(death_path(tape), MAX_FILE_BYTES, owner)), tape.stem)
    except (OSError, ValueError, RecursionError):
        return None


def _death_from(found: Any, nonce: str) -> Death | None:
    """Check every value: another user may have written the file."""
    if not isinstance(found, dict):
        return None
    values = cast("dict[str, Any]", found)
    if values.get("nonce") != nonce:
        return None
    known = {field.name: values[field.name] for field in fields(Death) if field.name in values}
    numbers = [known.get("at_ns"), *(known.get(name, 0) for name in ("resolution_ns", "stopped_since_ns", "ran_ns"))]
    if not all(type(number) is int and 0 <= number < _MAX_INT for number in numbers):
        return None
    status = known.get("status")
    if status is not None and not (type(status) is int and 0 <= status <= 0xFFFF):
        return None
    is_known = known.get("oom", "") in _OOM and known.get("stopped", "") in _STATES
    is_known &= all(isinstance(known.get(name, False), bool) for name in ("with_others", "outlives_request"))
    texts = {name: known.get(name, "") for name in ("error", "launcher")}
    if not is_known or not all(isinstance(text, str) for text in texts.values()):
        return None
    known |= {name: readable(text, MAX_ERROR) for name, text in texts.items()}
    return Death(**known)
