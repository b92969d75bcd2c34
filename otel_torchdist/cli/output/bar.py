"""Draws the bar of work in progress, with its rate and the time left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from otel_torchdist.cli.output.work import Work

REDRAWS_PER_S: Final = 8
_BAR_WIDTH: Final = 24


class _StderrConsole(Console):
    """Standard error with its cursor visible: a command killed by a signal could not restore a hidden one."""

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor alone."""
        return False


class WorkBar:
    """A bar on standard error, redrawn by a thread until it is closed."""

    def __init__(self, current: Callable[[], Work | None]) -> None:
        """Draw the work that `current` returns."""
        self._current = current
        # Standard output may be a pipe or a file and must not be redirected to the terminal.
        self._live = Live(
            console=_StderrConsole(stderr=True, highlight=False),
            get_renderable=self._render,
            refresh_per_second=REDRAWS_PER_S,
            transient=True,
            redirect_stdout=False,
        )
        with contextlib.suppress(OSError):  # the terminal is gone
            self._live.start(refresh=True)

    def close(self) -> None:
        """Erase the bar."""
        with contextlib.suppress(OSError):
            self._live.stop()

    def _render(self) -> RenderableType:
        work = self._current()
        if work is None:
            return ""
        row = Table.grid(padding=(0, 1))
        for _ in range(3):
            row.add_column(no_wrap=True)
        now_s = time.monotonic()
        bar = ProgressBar(work.total, work.completed(now_s), width=_BAR_WIDTH, pulse=work.total is None)
        row.add_row(work.title, bar, Text(work.figures(now_s), style="dim"))
        return row
