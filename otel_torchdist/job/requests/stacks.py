"""The stacks of one process's threads, written beside its tape when a reader asks for them."""

from __future__ import annotations

import json
from pathlib import Path

from otel_torchdist.files.owned import replace_at_once
from otel_torchdist.model.stacks import ThreadStack
from otel_torchdist.tape.names.writer import site_document


def stacks_path(tape: Path) -> Path:
    """Return the path of the stacks of the process that writes `tape`."""
    return tape.with_suffix(".stacks")


def write_stacks(tape: Path, request: int, stacks: list[ThreadStack]) -> None:
    """Replace the stacks beside a tape atomically: a reader sees the old ones or the new ones.

    Raises:
        OSError: The file cannot be written.
    """
    # Encoded in one piece: `json.dump` takes ten times as long, and holds the GIL.
    body = json.dumps({"request": request, "threads": [_document(stack) for stack in stacks]})
    replace_at_once(stacks_path(tape), tape.with_suffix(".stacks.new"), body.encode())


def _document(stack: ThreadStack) -> dict[str, object]:
    frames = [site_document(frame) for frame in stack.frames]
    return {"thread": stack.thread, "name": stack.name, "frames": frames, "is_locked": stack.is_locked}
