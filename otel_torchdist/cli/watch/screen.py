"""What `watch` shows at one moment, independent of the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from otel_torchdist.cli.output.alarm import Alarm
from otel_torchdist.cli.output.rank_table import Doing, RankRow, longest_wait, rank_rows
from otel_torchdist.cli.watch.passive import Observation, Rates
from otel_torchdist.model.calls import GroupView
from otel_torchdist.naming import name_ranks, run_label
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.verdict.model import Verdict

LATE: Final = 0.05
"""Share of their time that the others must lose to a rank for it to be shown."""


@dataclass(frozen=True, slots=True)
class WatchRow:
    """One rank.

    Attributes:
        row: What it does.
        group: The process group of the operation that it is in, or missing in; '' without an operation.
        rates: Its rates.
        late: Share of the others' time that they lose to it, from 0 to 1.
    """

    row: RankRow
    group: str
    rates: Rates
    late: float


@dataclass(frozen=True, slots=True)
class Screen:
    """A job at one moment.

    Attributes:
        run: The first digits of its run's id; '' while there is none.
        world_size: Number of its ranks on all nodes.
        rows: What each rank here does, ascending.
        alarm: The ongoing stall; None if there is none.
    """

    run: str
    world_size: int
    rows: Sequence[WatchRow]
    alarm: Alarm | None

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
    tapes = {tape.identity.rank: tape for tape in seen.tapes}
    rows = [
        WatchRow(row, _group(row, tapes[row.rank], verdict), seen.rates[row.rank], seen.late.get(row.rank, 0.0))
        for row in rank_rows(seen.tapes, verdict, threshold_s, seen.world.taken_ns)
    ]
    world_size = max(tape.identity.world_size for tape in seen.tapes)
    return Screen(run_label(seen.world.run), world_size, rows, alarm)


def crowds(screen: Screen) -> Iterator[str]:
    """Describe ranks that do the same, a clause each: `ranks 0-1,3 stalled, all_reduce #80 (default_pg) for 6.1 s`."""
    found: dict[tuple[str, str], list[RankRow]] = {}
    for one in screen.rows:
        waits = one.row.doing is not Doing.RUNNING and one.row.age_s is not None
        operation = f"{one.row.operation} ({one.group or 'unknown group'})" if waits else ""
        found.setdefault((one.row.doing.value, operation), []).append(one.row)
    for (doing, operation), rows in found.items():
        text = f"{name_ranks([row.rank for row in rows])} {doing}"
        yield f"{text}, {operation} for {max(row.age_s or 0 for row in rows):.1f} s" if operation else text


def _group(row: RankRow, tape: TapeReader, verdict: Verdict | None) -> str:
    if row.doing in (Doing.ABSENT, Doing.FROZEN) and verdict is not None:
        return _title(verdict.label, verdict.group.title if verdict.group is not None else "")
    operation = longest_wait(tape) if row.operation else None
    group = tape.names.group(operation.group) if operation is not None else None
    label = (tape.names.label(operation.label, operation.piece) or "") if operation is not None else ""
    name = GroupView(group.key, group, frozenset(group.ranks)).title if group is not None else ""
    return _title(label, name)


def _title(label: str, group: str) -> str:
    """Format what an operation is for and its group."""
    return ", ".join(filter(None, [label, group]))
