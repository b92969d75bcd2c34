"""The two views of `watch`: a live table on a terminal, lines for pipes and logs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from otel_torchdist.cli.output.alarm import Alarm
from otel_torchdist.cli.output.rank_table import NOT_IN, STYLES, Doing
from otel_torchdist.cli.output.terminal import redraw, stall_panel
from otel_torchdist.cli.watch.screen import LATE, Screen, View, WatchRow, crowds
from otel_torchdist.units import seconds


class LiveView(View):
    """Redraws a table in place."""

    def __init__(self, live: Live, directory: Path) -> None:
        """Draw on `live` what happens in a job directory."""
        self._live = live
        self._directory = directory

    def report(self, text: str) -> None:
        """See `View`."""
        self._live.console.print(Text.assemble((time.strftime("%H:%M:%S  "), "dim"), text))

    def report_stall(self, alarm: Alarm, is_new: bool) -> None:
        """See `View`; where and for how long is part of each screen."""
        if is_new:
            self.report(f"stall: {alarm.text}")

    def show(self, screen: Screen) -> None:
        """See `View`."""
        parts: list[RenderableType] = [_headline(screen, self._directory)]
        if screen.alarm is not None:
            parts.append(stall_panel(screen.alarm))
        parts.append(_table(screen))
        # The terminal prints ^C after the last line: a full line would wrap, and the next screen would be one line off.
        parts.append(Text(screen.unseen, style="dim"))
        redraw(self._live, Group(*parts))


def _headline(screen: Screen, directory: Path) -> Text:
    run = Text(f"run {screen.run}" if screen.run else "run not known yet", style="bold")
    return run.append(f"  {len(screen.rows)} of {screen.world_size} ranks  {directory}", style="not bold dim")


def _table(screen: Screen) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=10)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("steps/s", justify="right", no_wrap=True)
    table.add_column("coll/s", justify="right", no_wrap=True)
    is_late = any(one.late >= LATE for one in screen.rows)
    if is_late:
        table.add_column("late", justify="right", no_wrap=True)
    table.add_column("operation", no_wrap=True)
    table.add_column("group", no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True, min_width=7)
    table.add_column("where", no_wrap=True, ratio=1)
    for row in screen.rows:
        table.add_row(*_cells(row, is_late))
    return table


def _cells(one: WatchRow, is_late: bool) -> list[RenderableType]:
    row, rates = one.row, one.rates
    has_ended = row.doing in (Doing.ENDED, Doing.FAILED, Doing.DEAD, Doing.FOLLOWED)
    return [
        str(row.rank),
        Text(f" {row.doing.value} ", style=STYLES[row.doing]),
        str(row.step),
        "" if has_ended else f"{rates.steps:.1f}",
        "" if has_ended else f"{rates.collectives:.1f}",
        *([f"{one.late:.0%}" if one.late >= LATE else ""] if is_late else []),
        Text(row.operation.removeprefix(NOT_IN)),  # its state shows that
        Text(one.group),
        "" if row.age_s is None else seconds(row.age_s),
        Text(row.place),
    ]


SUMMARY_EVERY_S: Final = 5.0


class PlainView(View):
    """Writes a line for each change, and from time to time one with the current state."""

    def __init__(self, console: Console) -> None:
        """Write to `console`."""
        self._console = console
        self._shown: float | None = None

    def report(self, text: str) -> None:
        """See `View`."""
        self._console.print(f"{time.strftime('%H:%M:%S')}  {text}", markup=False, highlight=False, soft_wrap=True)

    def report_stall(self, alarm: Alarm, is_new: bool) -> None:
        """See `View`."""
        self.report(f"{'STALL' if is_new else 'still'}: {alarm.text}")
        if alarm.place and is_new:
            self.report(f"       {alarm.place}")

    def show(self, screen: Screen) -> None:
        """See `View`."""
        now = time.monotonic()
        if self._shown is not None and now - self._shown < SUMMARY_EVERY_S:
            return
        self._shown = now
        steps = sorted({one.row.step for one in screen.rows})
        at = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        pace = max((one.rates.steps for one in screen.rows), default=0.0)
        collectives = max((one.rates.collectives for one in screen.rows), default=0.0)
        parts = [at, f"{pace:.1f} steps/s", f"{collectives:.1f} collectives/s", *crowds(screen)]
        parts += [f"the others lose {one.late:.0%} to rank {one.row.rank}" for one in screen.rows if one.late >= LATE]
        self.report("; ".join(parts))
