"""Where one rank is in its code, as far as is known: its stack, else what its tape says."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from otel_torchdist.stall.frames import stack_text, thread_to_show, user_frame
from otel_torchdist.stall.process_state import HEARTBEAT_LATE_NS
from otel_torchdist.stall.world import OperationView, RankView
from otel_torchdist.tape.records import CallSiteName
from otel_torchdist.tape.stacks import ThreadStack


class Source(enum.Enum):
    """How a place is known."""

    STACK = "stack"
    """The rank's own thread wrote its stack when it was asked."""
    SIGNAL = "signal"
    """A signal took the stack of one thread, while something held the GIL."""
    OPEN_OPERATION = "open operation"
    """Where it called the operation that it is in."""
    LAST_OPERATION = "last operation"
    """Where it called the operation that ended last; it has moved on since."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is.

    Attributes:
        source: How this is known.
        frame: The line of its code; None when there is none.
        operation: The operation that `frame` called; '' when the frame comes from a stack.
        stacktrace: Its whole stack as text, or ''.
        frozen_for_ns: How long its Python threads have not run; None when they run or are gone.
        stopped: How the kernel prevents its process from running, see `Stopped.state`; '' when it does not.
    """

    source: Source
    frame: CallSiteName | None
    operation: str = ""
    stacktrace: str = ""
    frozen_for_ns: int | None = None
    stopped: str = ""


def place_of(view: RankView, operation: OperationView | None, now_ns: int, thread: ThreadStack | None = None) -> Place:
    """Where a rank is, and whether it can run.

    Args:
        view: The rank.
        operation: The open operation of interest that it is in, if any.
        now_ns: When the picture was taken.
        thread: The thread of interest where it is in none, if that is known.
    """
    place = _place_of(view, operation, now_ns, thread)
    return replace(place, stopped=view.stopped.state) if view.stopped is not None else place


def _place_of(view: RankView, operation: OperationView | None, now_ns: int, chosen: ThreadStack | None) -> Place:
    inside = operation or next((candidate for candidate in view.open if candidate.record.is_blocking), None)
    silence_ns = now_ns - view.heartbeat_ns
    frozen_for_ns = silence_ns if view.alive and silence_ns > HEARTBEAT_LATE_NS else None
    if view.alive and view.stacks is not None and view.stacks.threads:
        thread = chosen or thread_to_show(view.stacks.threads, inside.record.thread if inside else None)
        if thread is not None and thread.frames:
            source = Source.SIGNAL if view.stacks.by_signal else Source.STACK
            return Place(source, user_frame(thread.frames), "", stack_text(thread.frames), frozen_for_ns)
    if inside is not None:
        return Place(Source.OPEN_OPERATION, inside.call_site, inside.name, frozen_for_ns=frozen_for_ns)
    if view.last is not None:
        return Place(Source.LAST_OPERATION, view.last.call_site, view.last.name, frozen_for_ns=frozen_for_ns)
    return Place(Source.NOTHING, None, frozen_for_ns=frozen_for_ns)
