"""Files beside a tape with which an agent asks the rank to save its state, or to end itself."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.files.owned import replace_at_once

# --- abort ------------------------------------------------------------------------------------------------------------
# A request to a rank to end itself. The rank checks for it once a second. A rank that ends itself, instead of being
# killed, can report the reason to its launcher.


MAX_REASON_BYTES: Final = 16_384
EXIT_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: a retry may succeed."""
FAILURE: Final = "StallAborted"
"""Name of the failure on the tape of a rank that ended itself on request."""
_READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def abort_path(tape: Path) -> Path:
    """Return the path of the abort request for the writer of a tape."""
    return tape.with_suffix(".abort")


def abort_reason(tape: Path) -> str:
    """Read the abort request for the writer of a tape: the reason; '' if there is none."""
    with contextlib.suppress(OSError), open(os.open(abort_path(tape), _READ_FLAGS), "rb") as stream:
        return stream.read(MAX_REASON_BYTES).decode(errors="replace")
    return ""


# --- rescue -----------------------------------------------------------------------------------------------------------
# A request to a rank to save its state. It contains only the verdict: a setting of the rank names the function that
# saves the state, so that no file can make a rank run other code.


_MAX_REQUEST_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class RescueRequest:
    """A request to save the state, with the verdict that is the reason for it.

    Attributes:
        run: Id of the run, 32 hexadecimal digits.
        trace_id: Trace id of the stall's own trace, 32 hexadecimal digits.
        verdict: Kind of the verdict: `absent`, `dead`, …
        ranks: The global ranks that the verdict names, such as `2,5-7`; '' if it names none.
        text: The whole verdict as a sentence.
    """

    run: str
    trace_id: str
    verdict: str
    ranks: str
    text: str


def rescue_path(tape: Path) -> Path:
    """Return the path of the rescue request for the writer of a tape."""
    return tape.with_suffix(".rescue")


def request_rescue(tape: Path, request: RescueRequest) -> None:
    """Ask the writer of a tape to save its state.

    Raises:
        OSError: No space is left, or the directory is gone.
    """
    path = rescue_path(tape)
    replace_at_once(path, path.with_name(f".{path.name}"), json.dumps(asdict(request)).encode())


def requested_rescue(tape: Path) -> RescueRequest | None:
    """Read the rescue request for the writer of a tape; None if there is none."""
    try:
        fields: Any = json.loads(read_regular(rescue_path(tape), _MAX_REQUEST_BYTES))
        request = RescueRequest(**fields)
    except (OSError, ValueError, TypeError):
        return None
    return request if all(isinstance(value, str) for value in asdict(request).values()) else None
