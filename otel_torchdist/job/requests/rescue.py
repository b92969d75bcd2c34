"""An agent's request to a rank to save its state, in a small file beside its tape.

It carries the verdict and nothing else: which function saves the state is the rank's own setting, so no file can make a
rank run something.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from otel_torchdist.files.others import read_regular
from otel_torchdist.files.owned import replace_at_once

MAX_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class RescueRequest:
    """Why a rank should save its state.

    Attributes:
        run: Id of the run, 32 hexadecimal digits.
        trace_id: Trace id of the stall's own trace, 32 hexadecimal digits.
        verdict: Kind of the verdict: `absent`, `dead`, …
        ranks: The global ranks that it names, such as `2,5-7`; '' if it names none.
        text: The whole verdict as a sentence.
    """

    run: str
    trace_id: str
    verdict: str
    ranks: str
    text: str


def rescue_path(tape: Path) -> Path:
    """Return the path of the request for the writer of a tape."""
    return tape.with_suffix(".rescue")


def request_rescue(tape: Path, request: RescueRequest) -> None:
    """Ask the writer of a tape to save its state.

    Raises:
        OSError: There is no room, or the directory is gone.
    """
    path = rescue_path(tape)
    replace_at_once(path, path.with_name(f".{path.name}"), json.dumps(asdict(request)).encode())


def requested_rescue(tape: Path) -> RescueRequest | None:
    """Read what the writer of a tape is asked for; None if it is not asked."""
    try:
        found: Any = json.loads(read_regular(rescue_path(tape), MAX_BYTES))
        request = RescueRequest(**found)
    except (OSError, ValueError, TypeError):
        return None
    return request if all(isinstance(value, str) for value in asdict(request).values()) else None
