"""The screen of `watch` and the demo, and its two views: a live table on a terminal, lines for pipes and logs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from otel_torchdist.cli.output.rank_table import crowds_at_terminal, rank_table, rows_at_terminal
from otel_torchdist.cli.output.terminal import Alarm, redraw, stall_panel
from otel_torchdist.cli.watch.passive import Observation, Rates
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.naming import name_ranks, run_label
from otel_torchdist.show.live.ranks import OVER, RankRow, RankState

LATE: Final = 0.05
"""Share of their time that the others must lose to a rank for it to be shown."""


@dataclass(frozen=True, slots=True)
class WatchRow:
    """One rank.

    Attributes:
        row: What it does.
        rates: Its rates.
        late: Share of the others' time that they lose to it, from 0 to 1.
    """

    row: RankRow
    rates: Rates
    late: float


@dataclass(frozen=True, slots=True)
class Training:
    """What the training script of the demo has printed, and how far it goes.

    Attributes:
        steps: Number of steps in total.
        last: The last line that it printed, or ''.
        new: The lines since the screen before.
    """

    steps: int
    last: str = ""
    new: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Screen:
    """A job at one moment.

    Attributes:
        run: The first digits of its run's id; '' while there is none.
        world_size: Number of its ranks on all nodes.
        rows: What each rank here does, ascending.
        alarm: The ongoing stall; None if there is none.
        training: The training script, if that is known, as in the demo.
    """

    run: str
    world_size: int
    rows: Sequence[WatchRow]
    alarm: Alarm | None
    training: Training | None = None

    @property
    def step(self) -> int:
        """Steps that all ranks have completed."""
        return min((one.row.step for one in self.rows), default=0)

    @property
    def unseen(self) -> str:
        """A clause about ranks that have no tape here; '' if there are none."""
        seen = {row.row.rank for row in self.rows}
        unseen = [rank for rank in range(self.world_size) if rank not in seen]
        if not unseen:
            return ""
        return f"{name_ranks(unseen)} {'has' if len(unseen) == 1 else 'have'} no tape on this node"


class View(Protocol):
    """A terminal with a live table, or lines."""

    def report(self, text: str) -> None:
        """Report an event in a line that stays."""
        ...

    def report_stall(self, alarm: Alarm, is_new: bool) -> None:
        """Report a stall: a new verdict, or that the last one still holds."""
        ...

    def show(self, screen: Screen) -> None:
        """Show the current state; called several times a second."""
        ...


def screen_of(seen: Observation, verdict: Verdict | None, alarm: Alarm | None, threshold_s: float) -> Screen:
    """Build the screen for a pass, with the verdict on the ongoing stall."""
    rows = [
        WatchRow(row, seen.rates[row.rank], seen.late.get(row.rank, 0.0))
        for row in rows_at_terminal(seen.world, verdict, threshold_s)
    ]
    world_size = max(tape.identity.world_size for tape in seen.tapes)
    return Screen(run_label(seen.world.run), world_size, rows, alarm)


_STARTING: Final = "torch and scikit-learn are being loaded"


class LiveView(View):
    """Redraws a table in place."""

    def __init__(self, live: Live, directory: Path | None = None) -> None:
        """Draw on `live` what happens in a job directory; None for the demo's, which is nothing to look into."""
        self._live = live
        self._directory = directory
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
        self._live.console.print(Text.assemble((time.strftime("%H:%M:%S  "), "dim"), text))

    def report_stall(self, alarm: Alarm, is_new: bool) -> None:
        """See `View`; where and for how long is part of each screen."""
        if is_new:
            self.report(f"stall: {alarm.text}")

    def show(self, screen: Screen) -> None:
        """See `View`."""
        parts: list[RenderableType] = [_headline(screen, self._directory)] if self._directory is not None else []
        if screen.alarm is not None:
            parts.append(stall_panel(screen.alarm))
        parts.append(_table(screen, self._live.console.width))
        if screen.training is not None:
            self._progress.update(self._task, total=screen.training.steps, completed=screen.step)
            line = Text(f"training: {screen.training.last or _STARTING}", style="dim")
            parts += [self._progress.get_renderable(), line]
        # The terminal prints ^C after the last line: a full line would wrap, and the next screen would be one line off.
        parts.append(Text(screen.unseen, style="dim"))
        redraw(self._live, Group(*parts))


def _headline(screen: Screen, directory: Path) -> Text:
    run = Text(f"run {screen.run}" if screen.run else "run not known yet", style="bold")
    return run.append(f"  {len(screen.rows)} of {screen.world_size} ranks  {directory}", style="not bold dim")


def _table(screen: Screen, width: int) -> Table:
    numbers = {
        "steps/s": ["" if _has_ended(one) else f"{one.rates.steps:.1f}" for one in screen.rows],
        "coll/s": ["" if _has_ended(one) else f"{one.rates.collectives:.1f}" for one in screen.rows],
    }
    if any(one.late >= LATE for one in screen.rows):
        numbers = {"late": [f"{one.late:.0%}" if one.late >= LATE else "" for one in screen.rows], **numbers}
    return rank_table([one.row for one in screen.rows], numbers, width)


def _has_ended(one: WatchRow) -> bool:
    return RankState(one.row.state) in OVER


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
        for line in screen.training.new if screen.training is not None else ():
            self.report(f"training: {line}")
        now = time.monotonic()
        if self._shown is not None and now - self._shown < SUMMARY_EVERY_S:
            return
        self._shown = now
        self.report("; ".join([*_pace(screen), *crowds_at_terminal(one.row for one in screen.rows), *_late(screen)]))


def _pace(screen: Screen) -> Iterator[str]:
    if screen.training is not None:
        yield f"step {screen.step} of {screen.training.steps}"
        return
    steps = sorted({one.row.step for one in screen.rows})
    yield f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    yield f"{max((one.rates.steps for one in screen.rows), default=0.0):.1f} steps/s"
    yield f"{max((one.rates.collectives for one in screen.rows), default=0.0):.1f} collectives/s"


def _late(screen: Screen) -> Iterator[str]:
    return (f"the others lose {one.late:.0%} to rank {one.row.rank}" for one in screen.rows if one.late >= LATE)
