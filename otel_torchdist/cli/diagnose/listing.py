"""The runs that there are, one a line, the newest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from otel_torchdist.cli.clock_text import day_and_time, iso_time
from otel_torchdist.cli.diagnose.document import SCHEMA
from otel_torchdist.cli.runs import Run
from otel_torchdist.errors import TapeError
from otel_torchdist.telemetry.rank_ranges import compress_ranks

_DAMAGED = "damaged"


def print_runs(runs: Iterable[Run], console: Console) -> None:
    """Print a table."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("run", "begun", "state", "ranks here", "of", "job directory"):
        table.add_column(name, no_wrap=True, justify="right" if name == "of" else "left")
    for run in runs:
        begun, here = day_and_time(run.begun_ns), compress_ranks(run.ranks)
        helps = f", helps {run.helps.label or '-'}" if run.helps is not None else ""
        table.add_row(run.label or "-", begun, state_of(run) + helps, here, str(run.world_size), run.directory.name)
    console.print(table)


def document_of_runs(runs: Iterable[Run]) -> dict[str, Any]:
    """The same as JSON: `schema`; `runs` with `id`, `directory`, `begun`, `state`, `ranks`, `world_size`, `helps`."""
    return {
        "schema": SCHEMA,
        "runs": [
            {
                "id": f"{run.run_id:032x}" if run.run_id else None,
                "directory": str(run.directory),
                "begun": iso_time(run.begun_ns),
                "state": state_of(run),
                "ranks": list(run.ranks),
                "world_size": run.world_size,
                "helps": f"{run.helps.run_id:032x}" if run.helps is not None else None,
            }
            for run in runs
        ],
    }


def state_of(run: Run) -> str:
    """What became of a run, in a word."""
    try:
        return run.life.value
    except TapeError:
        return _DAMAGED
