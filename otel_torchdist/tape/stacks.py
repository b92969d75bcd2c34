"""Stacks of one process's threads, written beside its tape when a reader asks for them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from otel_torchdist.tape.records import CallSiteName


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Where one thread is.

    Attributes:
        thread: Native thread id, the same as `Operation.thread`.
        name: The thread's name.
        frames: Innermost frame first.
    """

    thread: int
    name: str
    frames: tuple[CallSiteName, ...]


def stacks_path(tape: Path) -> Path:
    """Where the stacks of the process that writes `tape` lie."""
    return tape.with_suffix(".stacks")


def write_stacks(tape: Path, request: int, stacks: list[ThreadStack]) -> None:
    """Replace the stacks beside a tape; a reader sees the old ones or the new ones, never half.

    Raises:
        OSError: The file cannot be written.
    """
    # In one piece, by hand: `asdict` and `json.dump` run ten times as long in Python, and hold the GIL.
    body = json.dumps({"request": request, "threads": [_document(stack) for stack in stacks]})
    hidden = tape.with_suffix(".stacks.new")
    file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w") as stream:
        stream.write(body)
    hidden.replace(stacks_path(tape))


def _document(stack: ThreadStack) -> dict[str, object]:
    frames = [{"function": frame.function, "file": frame.file, "line": frame.line} for frame in stack.frames]
    return {"thread": stack.thread, "name": stack.name, "frames": frames}
