"""The table of ranks on a terminal, and one-line summaries of their states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from otel_torchdist.cli.output.fitting import FittedColumn, Narrowing, fitted
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.text import MemberRank, name_ranks, seconds
from otel_torchdist.show.live.blame import stall_of_verdict
from otel_torchdist.show.live.ranks import WAITS_NS, RankRow, RankState, rank_rows
from otel_torchdist.show.live.texts import shown_line

_STATE_WIDTH: Final = 10
_AGE_WIDTH: Final = 7


def rows_at_terminal(world: WorldSnapshot, verdict: Verdict | None, threshold_s: float) -> list[RankRow]:
    """Return the rows of the ranks of a run, without ranks of other runs that it communicates with.

    A rank counts as stalled once it has waited for `threshold_s` seconds.
    """
    named = verdict.places.items() if verdict is not None else ()
    lines = {rank: shown_line(place.frame) for rank, place in named if place.frame is not None}
    blame = stall_of_verdict(verdict) if verdict is not None else None
    rows = rank_rows(world, blame, lines, threshold_s, {}, world.taken_ns)
    return [row for row in rows if not isinstance(row.rank, MemberRank)]


def state_clauses(rows: Iterable[RankRow]) -> Iterator[str]:
    """Yield a clause for each group of ranks in the same state.

    For example `ranks 0-1,3 stalled, all_reduce #80 (default_pg) for 6.1 s`.
    """
    groups: dict[tuple[str, str], list[RankRow]] = {}
    for row in rows:
        waits = row.state != RankState.RUNNING.value and row.age_s is not None
        operation = f"{row.operation} ({row.group or 'unknown group'})" if waits else ""
        groups.setdefault((row.state, operation), []).append(row)
    for (state, operation), members in groups.items():
        text = f"{name_ranks([row.rank for row in members])} {state}"
        yield f"{text}, {operation} for {seconds(max(row.age_s or 0 for row in members))}" if operation else text


def rank_table(rows: Sequence[RankRow], numbers: Mapping[str, Sequence[str]], width: int) -> Table:
    """Return the table of ranks.

    Once a rank waits, the line of code of each rank matters most: rates are left out first, and text wraps. While all
    ranks run, operations change within milliseconds, so text is cut and the layout stays the same.

    Args:
        rows: The ranks.
        numbers: Cells of additional columns, one for each rank. The first column is left out last.
        width: The width of the terminal.
    """
    waits = any(row.age_s is not None and row.age_s * 1e9 >= WAITS_NS for row in rows)
    rates = [
        FittedColumn(name, expendable=index + 1, cells=[Text(cell) for cell in cells], shown_if_empty=True)
        for index, (name, cells) in enumerate(numbers.items())
    ]
    columns = [
        FittedColumn("rank", cells=[Text(str(row.rank)) for row in rows]),
        FittedColumn("state", is_text=True, cells=[_state(row) for row in rows], min_width=_STATE_WIDTH),
        FittedColumn("step", cells=[Text(str(row.step)) for row in rows]),
        *rates,
        FittedColumn("operation", is_text=True, cells=[Text(row.operation) for row in rows], shown_if_empty=True),
        FittedColumn("group", is_text=True, cells=[Text(row.group) for row in rows], shown_if_empty=True),
        FittedColumn("age", cells=[Text(_age(row)) for row in rows], shown_if_empty=True, min_width=_AGE_WIDTH),
        FittedColumn(
            "where", is_text=True, cells=[Text(row.line) for row in rows], shown_if_empty=True, wraps_last=waits
        ),
    ]
    return fitted(columns, width, Narrowing.LEAVES_OUT if waits else Narrowing.CUTS)[0]


def _state(row: RankRow) -> Text:
    return Text(f" {row.state} ", style=style_of(RankState(row.state)))


def style_of(state: RankState) -> str:
    """Return the terminal style of a state, the same in all commands."""
    match state:
        case RankState.ABSENT | RankState.STOPPED | RankState.UNREACHABLE:
            return "bold white on red"
        case RankState.DEAD | RankState.FAILED:
            return "bold red"
        case RankState.STALLED:
            return "bold yellow"
        case RankState.WAITING:
            return "yellow"
        case RankState.RUNNING | RankState.CALLING | RankState.SERVING:
            return "green"
        case RankState.STARTING | RankState.FINISHED | RankState.SWITCHED_OFF | RankState.FOLLOWED:
            return "dim"


def _age(row: RankRow) -> str:
    return "" if row.age_s is None else seconds(row.age_s)
