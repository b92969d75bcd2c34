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

from otel_torchdist.cli.output.rank_table import rank_table, rows_at_terminal, state_clauses
from otel_torchdist.cli.output.terminal import Alarm, redraw, stall_panel
from otel_torchdist.cli.watch.passive import Observation, Rates
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.text import name_ranks
from otel_torchdist.show.live.ranks import OVER, RankRow, RankState

MIN_LATE: Final = 0.05
"""A rank is shown as late if the other ranks lose at least this share of their time to it."""


@dataclass(frozen=True, slots=True)
class WatchRow:
    """The row of one rank.

    Attributes:
        row: Its state.
        rates: Its pace.
        late: Share of the other ranks' time lost to it, from 0 to 1.
    """

    row: RankRow
    rates: Rates
    late: float


@dataclass(frozen=True, slots=True)
class Training:
    """The output and length of the demo's training script.

    Attributes:
        steps: Number of steps in total.
        last: Last printed line, or ''.
        new: Lines printed since the previous screen.
    """

    steps: int
    last: str = ""
    new: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Screen:
    """A job at one moment.

    Attributes:
        run: The first digits of the run's id; '' until known.
        world_size: Number of ranks on all nodes.
        rows: The ranks on this node, ascending.
        alarm: The ongoing stall, if any.
        training: The training script of the demo; None for other jobs.
    """

    run: str
    world_size: int
    rows: Sequence[WatchRow]
    alarm: Alarm | None
    training: Training | None = None

    @property
    def step(self) -> int:
        """Number of steps that all ranks have completed."""
        return min((shown.row.step for shown in self.rows), default=0)

    @property
    def without_tape(self) -> str:
        """Names the ranks without a tape on this node: `rank 3 has no tape on this node`; '' if there are none."""
        with_tape = {row.row.rank for row in self.rows}
        without_tape = [rank for rank in range(self.world_size) if rank not in with_tape]
        if not without_tape:
            return ""
        return f"{name_ranks(without_tape)} {'has' if len(without_tape) == 1 else 'have'} no tape on this node"


class View(Protocol):
    """A display of a job: a live table or lines."""

    def report(self, text: str) -> None:
        """Report an event in a permanent line."""
        ...

    def report_stall(self, alarm: Alarm, is_new: bool) -> None:
        """Report a stall: a new verdict, or a reminder that the last one still holds."""
        ...

    def show(self, screen: Screen) -> None:
        """Show the current state; called several times a second."""
        ...


def screen_of(observation: Observation, verdict: Verdict | None, alarm: Alarm | None, threshold_s: float) -> Screen:
    """Build the screen for an observation, with the verdict on the ongoing stall."""
    rows = [
        WatchRow(row, observation.rates[row.rank], observation.late.get(row.rank, 0.0))
        for row in rows_at_terminal(observation.world, verdict, threshold_s)
    ]
    world_size = max(tape.identity.world_size for tape in observation.tapes)
    return Screen(run_label(observation.world.run), world_size, rows, alarm)


_STARTING: Final = "torch and scikit-learn are being loaded"


class LiveView(View):
    """Redraws a table in place."""

    def __init__(self, live: Live, directory: Path | None = None) -> None:
        """Draw on `live`; `directory` is shown in the headline, and is None for the demo."""
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
        """See `View`; each screen shows the line of code and the age."""
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
        # The terminal prints ^C after the last line. If the line were full, ^C would wrap and shift the next screen.
        parts.append(Text(screen.without_tape, style="dim"))
        redraw(self._live, Group(*parts))


def still_of(screen: Screen, place: str, width: int) -> Group:
    """Return the table of one moment, with the stall above it.

    Args:
        screen: The job at that moment.
        place: Path of its job directory or bundle.
        width: Columns.
    """
    parts: list[RenderableType] = [_headline(screen, place)]
    if screen.alarm is not None:
        parts.append(stall_panel(screen.alarm))
    return Group(*parts, _table(screen, width), Text(screen.without_tape, style="dim"))


def _headline(screen: Screen, directory: Path | str) -> Text:
    run = Text(f"run {screen.run}" if screen.run else "run not known yet", style="bold")
    return run.append(f"  {len(screen.rows)} of {screen.world_size} ranks  {directory}", style="not bold dim")


def _table(screen: Screen, width: int) -> Table:
    numbers = {
        "steps/s": ["" if _has_ended(shown) else f"{shown.rates.steps:.1f}" for shown in screen.rows],
        "coll/s": ["" if _has_ended(shown) else f"{shown.rates.collectives:.1f}" for shown in screen.rows],
    }
    if any(shown.late >= MIN_LATE for shown in screen.rows):
        numbers = {
            "late": [f"{shown.late:.0%}" if shown.late >= MIN_LATE else "" for shown in screen.rows],
            **numbers,
        }
    return rank_table([shown.row for shown in screen.rows], numbers, width)


def _has_ended(shown: WatchRow) -> bool:
    return RankState(shown.row.state) in OVER


SUMMARY_EVERY_S: Final = 5.0


class PlainView(View):
    """Writes a line for each change, and a summary of the current state from time to time."""

    def __init__(self, console: Console) -> None:
        """Write to `console`."""
        self._console = console
        self._summarized_at: float | None = None

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
        if self._summarized_at is not None and now - self._summarized_at < SUMMARY_EVERY_S:
            return
        self._summarized_at = now
        self.report("; ".join([*_pace(screen), *state_clauses(row.row for row in screen.rows), *_late(screen)]))


def _pace(screen: Screen) -> Iterator[str]:
    if screen.training is not None:
        yield f"step {screen.step} of {screen.training.steps}"
        return
    steps = sorted({shown.row.step for shown in screen.rows})
    yield f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    yield f"{max((shown.rates.steps for shown in screen.rows), default=0.0):.1f} steps/s"
    yield f"{max((shown.rates.collectives for shown in screen.rows), default=0.0):.1f} collectives/s"


def _late(screen: Screen) -> Iterator[str]:
    return (
        f"the other ranks lose {shown.late:.0%} of their time to rank {shown.row.rank}"
        for shown in screen.rows
        if shown.late >= MIN_LATE
    )
