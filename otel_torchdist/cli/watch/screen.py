"""What `watch` shows at one moment, independent of the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from otel_torchdist.cli.output.alarm import Alarm
from otel_torchdist.cli.output.rank_table import rows_at_terminal
from otel_torchdist.cli.watch.passive import Observation, Rates
from otel_torchdist.live.ranks import RankRow
from otel_torchdist.naming import name_ranks, run_label
from otel_torchdist.verdict.model import Verdict

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
