"""The death of a rank as seen by its node's agent: a small file beside the tape, for later readers."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final, cast

from otel_torchdist.files.others import read_regular
from otel_torchdist.files.owned import replace_at_once
from otel_torchdist.model.lives import BY_CGROUP, BY_NODE, STOPPED_STATES, Death
from otel_torchdist.naming import readable

MAX_FILE_BYTES: Final = 4096
MAX_ERROR: Final = 200
"""Characters of an exception that are kept."""
_MAX_INT: Final = 1 << 63
_OOM: Final = ("", BY_CGROUP, BY_NODE)


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
    is_known = known.get("oom", "") in _OOM and known.get("stopped", "") in ("", *STOPPED_STATES)
    is_known &= all(isinstance(known.get(name, False), bool) for name in ("with_others", "outlives_request"))
    texts = {name: known.get(name, "") for name in ("error", "launcher")}
    if not is_known or not all(isinstance(text, str) for text in texts.values()):
        return None
    known |= {name: readable(text, MAX_ERROR) for name, text in texts.items()}
    return Death(**known)
