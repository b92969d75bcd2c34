"""Texts of jobs for the page: printable, and short. The page puts them into text nodes and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.text import readable

MAX_NAME: Final = 120
MAX_SENTENCE: Final = 4096
MAX_STACK: Final = 16_384


def shown(text: str) -> str:
    """Return a name from a job, printable and shortened."""
    return readable(text, MAX_NAME)


def shown_group(group: GroupView | None, label: str = "") -> str:
    """Return the label of an operation followed by the name of its group; '' if unknown."""
    return shown(", ".join(filter(None, [label, group.title if group is not None else ""])))


def shown_line(frame: CallSiteName | None) -> str:
    """Return a line of code, such as `train.py:42 train`; '' if there is none."""
    return shown(f"{PurePath(frame.file).name}:{frame.line} {frame.function}") if frame is not None else ""


def shown_call_path(frame: CallSiteName | None, path: Sequence[str]) -> str:
    """Return a line of code and its callers: `train.py:42 step ← train.py:80 main`."""
    return shown(" ← ".join([shown_line(frame), *path[1:]])) if frame is not None else ""


def shown_stack(text: str) -> str:
    """Return a stack, line by line, shortened at its outer end: the innermost frames, which come last, matter most."""
    return "\n".join(readable(line) for line in text[-MAX_STACK:].splitlines())
