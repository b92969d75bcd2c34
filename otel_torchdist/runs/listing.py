"""The list of the runs that left a tape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from otel_torchdist.errors import TapeError
from otel_torchdist.model.times import iso_time
from otel_torchdist.node.job.runs.runs import Run

_DAMAGED: Final = "damaged"


class ListedRun(msgspec.Struct, frozen=True):
    """A run that left a tape.

    Attributes:
        id: 32 hex digits; null if it has none.
        directory: Its job directory.
        begun: Start of its first rank.
        state: `running`, `finished`, `failed`, `dead` or `damaged`; `archived` for a run from an archive.
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
    """The output of `diagnose --list --json`.

    Attributes:
        schema: 2.
        runs: The runs, the newest first.
    """

    schema: int
    runs: tuple[ListedRun, ...]


def listed(runs: Iterable[Run]) -> tuple[ListedRun, ...]:
    """Return the runs of an index as structs."""
    return tuple(
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
    )


def state_of(run: Run) -> str:
    """Return the state of a run in a word."""
    try:
        return run.life.value
    except TapeError:
        return _DAMAGED
