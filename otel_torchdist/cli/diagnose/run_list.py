"""The list of runs that `diagnose --list` prints, as a table and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from otel_torchdist.cli.diagnose.result import SCHEMA
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.terminal import CommandConsole, print_json
from otel_torchdist.cli.output.text import day_and_time, fail, iso_time
from otel_torchdist.cli.targets import warn
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.job.runs.runs import Run, whole_index
from otel_torchdist.naming import compress_ranks

LIST_WIDTH: Final = 200
"""Width if there is no terminal."""
_DAMAGED: Final = "damaged"


class ListedRun(msgspec.Struct, frozen=True):
    """A run that left a tape.

    Attributes:
        id: 32 hex digits; null if it has none.
        directory: Its job directory.
        begun: When its first rank began.
        state: `running`, `finished`, `failed`, `dead` or `damaged`.
        ranks: Its ranks on this node.
        world_size: Number of its ranks.
        helps: Id of the run whose ranks have started these processes.
    """

    id: str | None
    directory: str
    begun: str
    state: str
    ranks: tuple[int, ...]
    world_size: int
    helps: str | None


class RunListResult(msgspec.Struct, frozen=True):
    """What `diagnose --list --json` prints.

    Attributes:
        schema: 2.
        runs: The runs, the newest first.
    """

    schema: int
    runs: tuple[ListedRun, ...]


def list_runs(config: Config, run_dir: Path | None, as_json: bool) -> None:
    """Print the runs of one job directory, or of all."""
    try:
        index = whole_index(config, run_dir)
    except TapeError as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    warn(index.unreadable)
    if as_json:
        print_json(_result(index.runs))
    else:
        print_runs(index.runs, CommandConsole(highlight=False, width=None if sys.stdout.isatty() else LIST_WIDTH))


def print_runs(runs: Iterable[Run], console: Console) -> None:
    """Print a table of runs."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("run", "started", "state", "ranks here", "of", "job directory"):
        table.add_column(name, no_wrap=True, justify="right" if name == "of" else "left")
    for run in runs:
        begun, here = day_and_time(run.begun_ns), compress_ranks(run.ranks)
        helps = f", helps {run.helps.label or '-'}" if run.helps is not None else ""
        table.add_row(run.label or "-", begun, state_of(run) + helps, here, str(run.world_size), run.directory.name)
    console.print(table)


def _result(runs: Iterable[Run]) -> RunListResult:
    return RunListResult(
        SCHEMA,
        tuple(
            ListedRun(
                id=f"{run.run_id:032x}" if run.run_id else None,
                directory=str(run.directory),
                begun=iso_time(run.begun_ns),
                state=state_of(run),
                ranks=tuple(run.ranks),
                world_size=run.world_size,
                helps=f"{run.helps.run_id:032x}" if run.helps is not None else None,
            )
            for run in runs
        ),
    )


def state_of(run: Run) -> str:
    """What became of a run, in a word."""
    try:
        return run.life.value
    except TapeError:
        return _DAMAGED
