"""Writes where every thread of this process is, when a reader asks."""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
import threading
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.tape.records import CallSiteName
from otel_torchdist.tape.stacks import ThreadStack, write_stacks

if TYPE_CHECKING:
    from otel_torchdist.tape.writer import TapeWriter

MAX_FRAMES: Final = 64
MAX_THREADS: Final = 64

_frames_by_thread: Final[Any] = sys._current_frames  # pyright: ignore[reportPrivateUsage]  # documented, and its only name
_code_and_line: Final[Any] = operator.attrgetter("f_code", "f_lineno")


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
    here, main = threading.get_ident(), threading.main_thread().ident
    threads = {thread.ident: thread for thread in threading.enumerate()}
    idents = sorted((ident for ident in _running() if ident != here), key=lambda ident: ident != main)
    stacks = [_stack_of(threads.get(ident), ident) for ident in idents[:MAX_THREADS]]
    return [stack for stack in stacks if stack.frames]  # a thread may be over by now


def _running() -> list[int]:
    """Threads that run Python, also those of C++ that `threading` does not list; no frame is held here either."""
    return list(itertools.chain.from_iterable(itertools.islice(iter(_frames_by_thread, None), 1)))


def _stack_of(thread: threading.Thread | None, ident: int) -> ThreadStack:
    return ThreadStack(
        thread=(thread.native_id if thread else None) or 0,
        name=thread.name if thread else f"thread {ident}",
        frames=tuple(_site(code, line) for code, line in _frames_of(ident)),
    )


def _frames_of(ident: int) -> list[tuple[CodeType, int | None]]:
    """Code and line of each frame of a thread, innermost first.

    The thread must not run meanwhile: with Python 3.11 a process crashes if frames of a thread that compiles are held
    until they are over, for Dynamo makes and clears frames itself. So built-in code drives the whole walk: no
    instruction of ours lies between the first frame and the last, where the interpreter could let another thread run.
    """
    first = map(operator.itemgetter(ident), itertools.islice(iter(_frames_by_thread, None), 1))
    steps = itertools.repeat("f_back", MAX_FRAMES - 1)
    frames = itertools.accumulate(itertools.chain(first, steps), getattr)
    found: list[tuple[CodeType, int | None]] = []
    with contextlib.suppress(AttributeError, KeyError):  # None has no caller; the thread is over
        found.extend(map(_code_and_line, frames))
    return found


def _site(code: CodeType, line: int | None) -> CallSiteName:
    return CallSiteName(getattr(code, "co_qualname", code.co_name), code.co_filename, line or 0)
