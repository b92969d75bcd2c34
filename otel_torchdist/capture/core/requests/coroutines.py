"""Where coroutines stand that a thread's event loop waits for: its own stack shows only the loop.

Followed from the task that the loop runs until it is complete, through what each awaits. Of several that are gathered,
the first that is not done. Private attributes are read, so whatever is missing ends the walk; nothing is changed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

MAX_DEPTH: Final = 32
_ALL_TASKS: Final = ("_scheduled_tasks", "_all_tasks")
"""From Python 3.12 on, and before."""
_LOOP: Final = "/asyncio/"
_IDLE: Final = "/selectors.py"


def with_coroutines(ident: int, frames: list[tuple[CodeType, int | None]]) -> list[tuple[CodeType, int | None]]:
    """Return the frames of a thread, innermost first, with those of the coroutines that its event loop waits for.

    They come after those of the loop, as it is the innermost that waits.

    Args:
        ident: The thread's id.
        frames: The frames.
    """
    place = max((at for at, (code, _) in enumerate(frames) if _LOOP in code.co_filename), default=-1) + 1
    if not place or not all(_is_of_loop(code) for code, _ in frames[:place]):
        return frames  # no loop, or one that runs a coroutine just now
    suspended: list[tuple[CodeType, int | None]] = []
    with contextlib.suppress(Exception):  # tasks may come and go meanwhile
        suspended = [*_suspended(_main_task(ident))]
    return [*frames[:place], *reversed(suspended), *frames[place:]]


def _is_of_loop(code: CodeType) -> bool:
    return _LOOP in code.co_filename or code.co_filename.endswith(_IDLE)


def _main_task(ident: int) -> Any:
    """Return the task that a thread's loop runs until it is complete; None if there is none."""
    tasks, events = sys.modules.get("asyncio.tasks"), sys.modules.get("asyncio.base_events")
    until_complete = getattr(events, "_run_until_complete_cb", None)
    known: Any = next((found for name in _ALL_TASKS if (found := getattr(tasks, name, None)) is not None), ())
    for task in list(known):
        is_here = getattr(task.get_loop(), "_thread_id", None) == ident
        if is_here and not task.done() and any(until_complete in one for one in task._callbacks or ()):
            return task
    return None


def _suspended(task: Any) -> Iterator[tuple[CodeType, int | None]]:
    """Code and line of each coroutine that a task waits for, outermost first."""
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
    """Return the task that ends a future: itself, or the first one of those gathered that is not done; None for others."""
    children = getattr(future, "_children", None)
    if children is not None:
        future = next((one for one in children if not one.done()), None)
    return future if hasattr(future, "get_coro") else None
