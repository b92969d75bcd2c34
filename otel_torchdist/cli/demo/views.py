"""The two views of the demo: a live table on a terminal, lines for pipes and logs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from otel_torchdist.cli.output.alarm import Alarm
from otel_torchdist.cli.output.rank_table import RankRow, rank_table
from otel_torchdist.cli.output.terminal import redraw, stall_panel
from otel_torchdist.naming import compress_ranks


@dataclass(frozen=True, slots=True)
class Screen:
    """The job at one moment.

    Attributes:
        rows: What each rank does, ascending.
        steps: Number of steps in total.
        training: The last line that the script printed, or ''.
    """

    rows: Sequence[RankRow]
    steps: int
    training: str = ""

    @property
    def step(self) -> int:
        """Steps that all ranks have completed."""
        return min((row.step for row in self.rows), default=0)


class View(Protocol):
    """A terminal with a live table, or lines."""

    def report(self, text: str) -> None:
        """Report an event in a line that stays."""
        ...

    def report_training(self, line: str) -> None:
        """Show what the script has printed."""
        ...

    def report_stall(self, alarm: Alarm) -> None:
        """Report a stall so that it cannot be missed."""
        ...

    def show(self, screen: Screen) -> None:
        """Show the current state; called several times a second."""
        ...


_STARTING: Final = "torch and scikit-learn are being loaded"


class LiveView(View):
    """Redraws a table and a progress bar in place."""

    def __init__(self, live: Live) -> None:
        """Draw on `live`."""
        self._live = live
        self._progress = Progress(
            TextColumn("steps"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=live.console,
            expand=True,
        )
        self._task = self._progress.add_task("steps", total=None)

    def report(self, text: str) -> None:
        """See `View`."""
        self._print(Text(text))

    def report_training(self, line: str) -> None:
        """See `View`; the newest line is part of each screen."""

    def report_stall(self, alarm: Alarm) -> None:
        """See `View`."""
        self._print(stall_panel(alarm))

    def show(self, screen: Screen) -> None:
        """See `View`."""
        self._progress.update(self._task, total=screen.steps, completed=screen.step)
        parts: list[RenderableType] = [rank_table(screen.rows), self._progress.get_renderable()]
        parts.append(Text(f"training: {screen.training or _STARTING}", style="dim"))
        redraw(self._live, Group(*parts))

    def _print(self, what: RenderableType) -> None:
        self._live.console.print(what)


PROGRESS_EVERY_S: Final = 5.0


class PlainView(View):
    """Writes a line for each event, and from time to time one with the current state."""

    def __init__(self, console: Console) -> None:
        """Write to `console`."""
        self._console = console
        self._began = self._shown = time.monotonic()

    def report(self, text: str) -> None:
        """See `View`."""
        age_s = time.monotonic() - self._began
        self._console.print(f"{age_s:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    def report_training(self, line: str) -> None:
        """See `View`."""
        self.report(f"training: {line}")

    def report_stall(self, alarm: Alarm) -> None:
        """See `View`."""
        self.report(f"STALL: {alarm.text}")
        if alarm.place:
            self.report(f"       {alarm.place}")

    def show(self, screen: Screen) -> None:
        """See `View`."""
        now = time.monotonic()
        if now - self._shown < PROGRESS_EVERY_S:
            return
        self._shown = now
        self.report("; ".join([f"step {screen.step} of {screen.steps}", *_crowds(screen)]))


def _crowds(screen: Screen) -> Iterator[str]:
    """Describe ranks that do the same, in rank order: `ranks 0-1,3 stalled in all_reduce #80 for 6.1 s`."""
    rows = sorted(screen.rows, key=_activity)
    for (doing, operation), crowd in groupby(rows, key=_activity):
        members = list(crowd)
        ranks = compress_ranks(row.rank for row in members)
        text = f"{'rank' if len(members) == 1 else 'ranks'} {ranks} {doing}"
        age_s = max((row.age_s for row in members if row.age_s is not None), default=None)
        if operation and age_s is not None:
            text += f", {operation} for {age_s:.1f} s"
        yield text


def _activity(row: RankRow) -> tuple[str, str]:
    return row.doing.value, row.operation
