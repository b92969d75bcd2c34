"""Progress of long work, shown as a bar on the standard error of a terminal.

A bar appears after half a second and is erased when its work ends. Only commands show bars: outside
`showing_progress`, and if standard error is not a terminal, `track` and `progress` of `system.progress` do nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from otel_torchdist.cli.output.work import Work
from otel_torchdist.system.progress import Advance, displayed_on

if TYPE_CHECKING:
    from otel_torchdist.cli.output.bar import WorkBar

APPEARS_AFTER_S: Final = 0.5


class _Works:
    """The nested pieces of work in progress. The bar shows the innermost one, which started last."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stack: list[Work] = []
        self._timer: threading.Timer | None = None
        self._bar: WorkBar | None = None

    @contextlib.contextmanager
    def showing(self, title: str, unit: str, total: int | None) -> Generator[Advance]:
        """Show a piece of work while the block runs; see `ProgressDisplay`."""
        work = Work(title, unit, total)
        self.begin(work)
        try:
            yield work.advance
        finally:
            with contextlib.suppress(ValueError):  # `hide_progress` has already removed it
                self.end(work)

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
        with displayed_on(works):
            yield
    finally:
        _works = None
        works.close()


def _can_erase() -> bool:
    # FORCE_COLOR asks for colors in a pipe or log, which cannot erase a bar.
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def hide_progress() -> None:
    """Erase the bar of work that an error ends, before the error is printed."""
    if _works is not None:
        _works.close()
