"""Rows of ranks on a terminal: how the states of ranks look, and in which words they are summed up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from otel_torchdist.live.blame import blame_of
from otel_torchdist.live.ranks import NOT_IN, RankRow, RankState, rank_rows
from otel_torchdist.live.texts import shown_line
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.naming import MemberRank, name_ranks
from otel_torchdist.units import seconds
from otel_torchdist.verdict.model import Verdict

_STYLES: Final = {
    RankState.STARTING: "dim",
    RankState.RUNNING: "green",
    RankState.CALLING: "green",
    RankState.SERVING: "green",
    RankState.WAITING: "yellow",
    RankState.STALLED: "bold yellow",
    RankState.ABSENT: "bold white on red",
    RankState.STOPPED: "bold white on red",
    RankState.UNREACHABLE: "bold white on red",
    RankState.FINISHED: "dim",
    RankState.FAILED: "bold red",
    RankState.DEAD: "bold red",
    RankState.FOLLOWED: "dim",
}


def rows_at_terminal(world: WorldSnapshot, verdict: Verdict | None, threshold_s: float) -> list[RankRow]:
    """Return the rows of the ranks of a run, without those of other worlds that it meets.

    Args:
        world: The ranks.
        verdict: Verdict on the ongoing stall, if any.
        threshold_s: Age at which a waiting rank counts as stalled.
    """
    found = verdict.places.items() if verdict is not None else ()
    places = {rank: shown_line(place.frame) for rank, place in found if place.frame is not None}
    blame = blame_of(verdict) if verdict is not None else None
    rows = rank_rows(world, blame, places, threshold_s, {}, world.taken_ns)
    return [row for row in rows if not isinstance(row.rank, MemberRank)]


def crowds_at_terminal(rows: Iterable[RankRow]) -> Iterator[str]:
    """Describe ranks that do the same, a clause each: `ranks 0-1,3 stalled, all_reduce #80 (default_pg) for 6.1 s`."""
    found: dict[tuple[str, str], list[RankRow]] = {}
    for row in rows:
        waits = row.state != RankState.RUNNING.value and row.age_s is not None
        operation = f"{row.operation} ({row.group or 'unknown group'})" if waits else ""
        found.setdefault((row.state, operation), []).append(row)
    for (state, operation), members in found.items():
        text = f"{name_ranks([row.rank for row in members])} {state}"
        yield f"{text}, {operation} for {seconds(max(row.age_s or 0 for row in members))}" if operation else text


def rank_table(more: Iterable[str] = ()) -> Table:
    """Return a table without rows; `more` are the columns of numbers behind the step."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=10)
    table.add_column("step", justify="right", no_wrap=True)
    for name in more:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("operation", no_wrap=True)
    table.add_column("group", no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True, min_width=7)
    table.add_column("where", no_wrap=True, ratio=1)
    return table


def cells(row: RankRow, more: Iterable[str] = ()) -> list[RenderableType]:
    """Return the cells of a row of such a table."""
    return [
        str(row.rank),
        Text(f" {row.state} ", style=_STYLES[RankState(row.state)]),
        str(row.step),
        *more,
        Text(row.operation.removeprefix(NOT_IN)),  # its state shows that
        Text(row.group),
        "" if row.age_s is None else seconds(row.age_s),
        Text(row.line),
    ]
