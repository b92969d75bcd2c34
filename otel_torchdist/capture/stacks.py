"""Writes where every thread of this process is, when a reader asks."""

from __future__ import annotations

import itertools
import sys
import threading
import traceback
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

from otel_torchdist.tape.records import CallSiteName
from otel_torchdist.tape.stacks import ThreadStack, write_stacks

if TYPE_CHECKING:
    from otel_torchdist.tape.writer import TapeWriter

MAX_FRAMES: Final = 64
MAX_THREADS: Final = 64


def answer_stack_request(tape: TapeWriter) -> None:
    """Write the stacks beside the tape if somebody asked for them.

    Raises:
        OSError: The stacks cannot be written.
    """
    request = tape.pending_request()
    if not request:
        return
    write_stacks(tape.path, request, current_stacks())
    tape.answer_request(request)


def current_stacks() -> list[ThreadStack]:
    """The stacks of all threads but this one, the main thread first."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, and its only name
    threads = {thread.ident: thread for thread in threading.enumerate()}
    here = threading.get_ident()
    main = threading.main_thread().ident
    idents = sorted((ident for ident in frames if ident != here), key=lambda ident: ident != main)
    return [_stack_of(threads.get(ident), ident, frames[ident]) for ident in idents[:MAX_THREADS]]


def _stack_of(thread: threading.Thread | None, ident: int, frame: FrameType) -> ThreadStack:
    frames = itertools.islice(traceback.walk_stack(frame), MAX_FRAMES)
    return ThreadStack(
        thread=(thread.native_id if thread else None) or 0,
        name=thread.name if thread else f"thread {ident}",
        frames=tuple(_site(inner.f_code, line) for inner, line in frames),
    )


def _site(code: CodeType, line: int) -> CallSiteName:
    return CallSiteName(getattr(code, "co_qualname", code.co_name), code.co_filename, line)
