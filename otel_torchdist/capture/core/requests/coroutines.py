"""Adds the frames of awaited coroutines to a thread's stack, which shows only the event loop.

The frames are found from the task of `run_until_complete`, by following awaits. Of gathered tasks, the first pending
one is followed. All attributes that are read are private to asyncio; the search ends where one is missing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

from otel_torchdist.capture.core.intervals import frames_by_thread

MAX_DEPTH: Final = 32
_ALL_TASKS: Final = ("_scheduled_tasks", "_all_tasks")
"""Names in Python 3.12 and 3.13, and in earlier versions. Since 3.14 these tables lack tasks that are written in C."""
_LOOP: Final = "/asyncio/"
_IDLE: Final = "/selectors.py"
_RUNS_LOOP: Final = "run_forever"


def with_coroutines(ident: int, frames: list[tuple[CodeType, int | None]]) -> list[tuple[CodeType, int | None]]:
    """Insert the frames of the coroutines that a thread's event loop waits for, behind the frames of the loop.

    Args:
        ident: The thread's id.
        frames: Its frames, innermost first.
    """
    end_of_loop = max((index for index, (code, _) in enumerate(frames) if _LOOP in code.co_filename), default=-1) + 1
    if not end_of_loop or not all(_is_of_loop(code) for code, _ in frames[:end_of_loop]):
        return frames  # no loop, or the loop is running a coroutine
    suspended: list[tuple[CodeType, int | None]] = []
    with contextlib.suppress(Exception):  # tasks may come and go meanwhile
        suspended = [*_suspended(_main_task(ident))]
    return [*frames[:end_of_loop], *reversed(suspended), *frames[end_of_loop:]]


def _is_of_loop(code: CodeType) -> bool:
    return _LOOP in code.co_filename or code.co_filename.endswith(_IDLE)


def _main_task(ident: int) -> Any:
    """Return the task of a thread's `run_until_complete`, or None."""
    tasks: Any = sys.modules.get("asyncio.tasks")
    events = sys.modules.get("asyncio.base_events")
    until_complete = getattr(events, "_run_until_complete_cb", None)
    if sys.version_info >= (3, 14):
        loop = _loop_of(ident)
        all_tasks: Any = tasks.all_tasks(loop) if loop is not None else ()
    else:
        all_tasks = next((table for name in _ALL_TASKS if (table := getattr(tasks, name, None)) is not None), ())
    candidates: list[Any] = list(all_tasks)
    for task in candidates:
        is_on_thread = getattr(task.get_loop(), "_thread_id", None) == ident
        if is_on_thread and not task.done() and any(until_complete in callback for callback in task._callbacks or ()):
            return task
    return None


def _loop_of(ident: int) -> Any:
    """Return the event loop that a thread runs, from its own frame; None if another frame is in front of it."""
    frame = next(frames_by_thread()).get(ident)
    while frame is not None and _is_of_loop(frame.f_code):
        if frame.f_code.co_name == _RUNS_LOOP:
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


def _suspended(task: Any) -> Iterator[tuple[CodeType, int | None]]:
    """Yield code and line of each coroutine that a task waits for, outermost first."""
    for _ in range(MAX_DEPTH):
        if task is None:
            return
        yield from _frames_in(task.get_coro())
        task = _task_behind(getattr(task, "_fut_waiter", None))


def _frames_in(coroutine: Any) -> Iterator[tuple[CodeType, int | None]]:
    for _ in range(MAX_DEPTH):
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame.f_code, frame.f_lineno
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def _task_behind(future: Any) -> Any:
    """Return the task behind a future: the future itself, or the first pending task of a gather. Else None."""
    children = getattr(future, "_children", None)
    if children is not None:
        future = next((child for child in children if not child.done()), None)
    return future if hasattr(future, "get_coro") else None
