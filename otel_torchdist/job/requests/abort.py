"""An agent's request to a rank to end itself, in a small file beside its tape.

A rank checks once a second whether it should. It ends itself if it can, so that it can report why to its launcher.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 16_384
EXIT_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: a retry may succeed."""
FAILURE: Final = "StallAborted"
"""The failure recorded on the tape of a rank that ended itself on request."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def abort_path(tape: Path) -> Path:
    """Return the path of the abort request for the writer of a tape."""
    return tape.with_suffix(".abort")


def abort_reason(tape: Path) -> str:
    """Read why the writer of a tape should end itself; '' when it should not."""
    with contextlib.suppress(OSError), open(os.open(abort_path(tape), _FLAGS), "rb") as stream:
        return stream.read(MAX_BYTES).decode(errors="replace")
    return ""
