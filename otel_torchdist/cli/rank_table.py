"""The table of ranks on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from otel_torchdist.cli.rank_rows import Doing, RankRow

STYLES: Final = {
    Doing.STARTING: "dim",
    Doing.RUNNING: "green",
    Doing.WAITING: "yellow",
    Doing.STALLED: "bold yellow",
    Doing.ABSENT: "bold white on red",
    Doing.FROZEN: "bold white on red",
    Doing.ENDED: "dim",
    Doing.FAILED: "bold red",
    Doing.DEAD: "bold red",
}
"""How each is shown."""


def rank_table(rows: Iterable[RankRow]) -> Table:
    """A table with a row for each rank."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=10)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("operation", no_wrap=True, min_width=22)
    table.add_column("age", justify="right", no_wrap=True, min_width=7)
    table.add_column("where", no_wrap=True, ratio=1)
    for row in rows:
        style = STYLES[row.doing]
        table.add_row(
            str(row.rank),
            Text(f" {row.doing.value} ", style=style),
            str(row.step),
            Text(row.operation),
            "" if row.age_s is None else f"{row.age_s:.1f} s",
            Text(row.place),
        )
    return table
