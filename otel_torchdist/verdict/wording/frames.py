"""Lines of code, in words."""

from __future__ import annotations

from pathlib import PurePath

from otel_torchdist.tape.names.model import CallSiteName


def describe_frame(frame: CallSiteName) -> str:
    """`load_batch at train.py:57`."""
    return f"{frame.function} at {_line(frame)}"


def at_line(frame: CallSiteName | None) -> str:
    """` at evaluate, train.py:61`; '' if the line is not known."""
    return f" at {frame.function}, {_line(frame)}" if frame is not None else ""


def describe_through(frame: CallSiteName | None) -> str:
    """`torchmetrics' gather_all_tensors`, the function of a library that a line has called; '' if it calls none."""
    package, _, function = frame.through.partition(".") if frame is not None else ("", "", "")
    return f"{package}'{'' if package.endswith('s') else 's'} {function}" if function else ""


def _line(frame: CallSiteName) -> str:
    return f"{PurePath(frame.file).name}:{frame.line}"
