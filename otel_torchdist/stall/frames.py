"""Which frame of a stack is the user's, and how a stack is shown."""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Final

from otel_torchdist.tape.records import CallSiteName
from otel_torchdist.tape.stacks import ThreadStack

MAX_STACK_TEXT: Final = 16_384
_MAIN_THREAD: Final = "MainThread"


class FrameOwner(enum.Enum):
    """Whose code a frame runs."""

    USER = "user"
    PACKAGE = "package"
    TORCH = "torch"
    OTEL_TORCHDIST = "otel_torchdist"
    STANDARD_LIBRARY = "standard library"


# By path alone: the process that reads need not have the interpreter, or the packages, of the one that wrote.
_OWNERS: Final = (
    (
        FrameOwner.OTEL_TORCHDIST,
        re.compile(
            r"/otel_torchdist/((agent|capture|stall|tape|telemetry)/|(_guard|autoload|first_group|instrumentor)\.py$)"
        ),
    ),
    (FrameOwner.TORCH, re.compile(r"/(site|dist)-packages/(torch|torchgen|functorch)/|/pytorch/torch/")),
    (FrameOwner.PACKAGE, re.compile(r"/(site|dist)-packages/")),
    (FrameOwner.STANDARD_LIBRARY, re.compile(r"/lib(64)?/python3(\.\d+t?)?/|/python3\d+\.zip/|^<frozen ")),
)
_INNERMOST_FIRST: Final = (FrameOwner.USER, FrameOwner.PACKAGE)
_FOLDED: Final = (FrameOwner.TORCH, FrameOwner.OTEL_TORCHDIST)


def owner_of(file: str) -> FrameOwner:
    """Whose code lies in `file`, judged by its path."""
    return next((owner for owner, pattern in _OWNERS if pattern.search(file)), FrameOwner.USER)


def thread_to_show(threads: Sequence[ThreadStack], native_id: int | None) -> ThreadStack | None:
    """The thread that an open operation names, else the main thread, else the first one.

    Args:
        threads: All threads of a process.
        native_id: `Operation.thread` of the operation that the rank is in; None when it is in none.
    """
    named = (thread for thread in threads if native_id and thread.thread == native_id)
    main = (thread for thread in threads if thread.name == _MAIN_THREAD)
    return next(itertools.chain(named, main, threads), None)


def user_frame(frames: Sequence[CallSiteName]) -> CallSiteName | None:
    """Where in its own code a thread is: the innermost frame of the user's, else of a package, else of any.

    Args:
        frames: Innermost first.
    """
    for owner in _INNERMOST_FIRST:
        found = next((frame for frame in frames if owner_of(frame.file) is owner), None)
        if found is not None:
            return found
    return next(iter(frames), None)


def stack_text(frames: Sequence[CallSiteName]) -> str:
    """A stack as Python writes it, most recent call last; runs of torch's frames and ours are folded into a line.

    Args:
        frames: Innermost first.
    """
    lines: list[str] = []
    for owner, group in itertools.groupby(reversed(frames), lambda frame: owner_of(frame.file)):
        lines += _lines(owner, list(group))
    # What is innermost matters most.
    return "\n".join(lines)[-MAX_STACK_TEXT:]


def _lines(owner: FrameOwner, frames: list[CallSiteName]) -> Iterable[str]:
    if owner in _FOLDED and len(frames) > 1:
        last = frames[-1]
        return [f"  [{len(frames)} frames of {owner.value}, the last: {last.function} in {last.file}:{last.line}]"]
    return [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in frames]
