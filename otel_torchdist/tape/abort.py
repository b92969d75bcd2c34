"""A word from the agent to a rank: end yourself. A small file beside the tape, which the rank looks for once a second.

The rank ends by itself where it can, for then it can tell its launcher why.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 16_384
EXIT_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: the same may succeed when it is tried again."""
FAILURE: Final = "StallAborted"
"""The name under which the tape of such a rank has failed."""
GIVEN_UP: Final = "BackendGaveUp"
"""The name under which a rank says that its backend has given up waiting for the others, and may end the process."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def abort_path(tape: Path) -> Path:
    """Where the word for the writer of a tape lies."""
    return tape.with_suffix(".abort")


def abort_reason(tape: Path) -> str:
    """Why the writer of a tape should end itself; '' when it should not."""
    with contextlib.suppress(OSError), open(os.open(abort_path(tape), _FLAGS), "rb") as stream:
        return stream.read(MAX_BYTES).decode(errors="replace")
    return ""
