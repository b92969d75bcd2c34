"""Progress of long work, shown as a bar on the standard error of a terminal.

A bar appears after half a second and is erased when its work ends. Only commands show bars: outside
`showing_progress`, and if standard error is not a terminal, `track` and `progress` do nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from otel_torchdist.cli.output.work import Work
from otel_torchdist.system.progress import Advance, unreported

if TYPE_CHECKING:
    from otel_torchdist.cli.output.bar import WorkBar

APPEARS_AFTER_S: Final = 0.5

_Item = TypeVar("_Item")


class _Works:
    """The nested pieces of work in progress. The bar shows the innermost one, which started last."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stack: list[Work] = []
        self._timer: threading.Timer | None = None
        self._bar: WorkBar | None = None

    def innermost(self) -> Work | None:
        # The bar's thread calls this while `_hide` waits for it, so there is no lock.
        return next(reversed(self._stack), None)

    def begin(self, work: Work) -> None:
        with self._lock:
            self._stack.append(work)
            if self._timer is None and self._bar is None:
                self._timer = threading.Timer(APPEARS_AFTER_S, self._show)
                self._timer.daemon = True
                self._timer.start()

    def end(self, work: Work) -> None:
        with self._lock:
            self._stack.remove(work)
            if not self._stack:
                self._hide()

    def close(self) -> None:
        with self._lock:
            self._stack.clear()
            self._hide()

    def _show(self) -> None:
        from otel_torchdist.cli.output.bar import (
            WorkBar,  # rich takes 50 ms to import, which short commands do not need
        )

        with self._lock:
            if self._stack and self._timer is threading.current_thread():
                self._bar = WorkBar(self.innermost)
                self._timer = None

    def _hide(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        bar, self._bar, self._timer = self._bar, None, None
        if bar is not None:
            bar.close()


_works: _Works | None = None


@contextlib.contextmanager
def showing_progress() -> Generator[None]:
    """Show the progress of work in this block, if standard error is a terminal that can erase a bar."""
    global _works
    if not _can_erase():
        yield
        return
    _works = works = _Works()
    try:
        yield
    finally:
        _works = None
        works.close()


def _can_erase() -> bool:
    # FORCE_COLOR asks for colours in a pipe or log; bars have no place there.
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def hide_progress() -> None:
    """Erase the bar of work that an error ends, before the error is printed."""
    if _works is not None:
        _works.close()


@contextlib.contextmanager
def progress(title: str, unit: str = "", total: int | None = None) -> Generator[Advance]:
    """Show the progress of the work in this block; yields the function to call with completed amounts.

    Args:
        title: See `Work`.
        unit: See `Work`.
        total: See `Work`.
    """
    works = _works
    if works is None:
        yield unreported
        return
    work = Work(title, unit, total)
    works.begin(work)
    try:
        yield work.advance
    finally:
        with contextlib.suppress(ValueError):  # erased by `hide_progress`
            works.end(work)


def track(
    items: Iterable[_Item],
    title: str,
    unit: str,
    total: int | None = None,
    size: Callable[[_Item], int] = lambda _: 1,
) -> Iterator[_Item]:
    """Yield items, and show how many of them have been processed.

    Args:
        items: The items.
        title: See `Work`.
        unit: See `Work`.
        total: See `Work`.
        size: Returns the amount that an item counts for.
    """
    with progress(title, unit, total) as advance:
        for item in items:
            yield item
            advance(size(item))
