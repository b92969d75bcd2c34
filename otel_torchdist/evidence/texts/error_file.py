"""torchelastic's error files: the exception that ended a rank, as JSON."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from otel_torchdist.evidence.lines import parsed
from otel_torchdist.evidence.model import MAX_TEXT, Raised, Statement, StatementKind, TextSource
from otel_torchdist.evidence.texts.python_stacks import PythonStacks
from otel_torchdist.naming import readable
from otel_torchdist.processes.error_file import decoded_error

MAX_BYTES: Final = 1 << 20
_LOCAL_RANK: Final = "attempt_"


def statement_of(content: bytes, path: str) -> Statement | None:
    """Return what an error file says; None if it is none."""
    error = decoded_error(content)
    if error is None:
        return None
    text = readable(error.summary, MAX_TEXT)
    stack = _raised(error.extraInfo.py_callstack, path)
    return Statement(
        kind=StatementKind.RAISED,
        source=TextSource(path, 0),
        text=text,
        local_rank=_local_rank(path),
        fact=Raised(text, stack.frames if stack is not None else ()),
        time=readable(str(error.extraInfo.timestamp), MAX_TEXT),
    )


def _raised(traceback: str, path: str) -> Raised | None:
    stacks = PythonStacks(path)
    found = [one for line in traceback.splitlines() for one in stacks.read(parsed(0, line.encode("utf-8", "replace")))]
    raised = [one.fact for one in found if isinstance(one.fact, Raised)]
    return raised[-1] if raised else None


def _local_rank(path: str) -> int | None:
    """Torchrun's own folders are `<run>/attempt_<n>/<local rank>/error.json`."""
    parts = PurePath(path).parts
    if len(parts) < 3 or not parts[-3].startswith(_LOCAL_RANK) or not parts[-2].isdecimal():
        return None
    return int(parts[-2])
