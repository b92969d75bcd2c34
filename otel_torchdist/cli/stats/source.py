"""Where the histories come from, one at a time, and in what words they are introduced."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from otel_torchdist.cli.text import day_and_time
from otel_torchdist.errors import TapeError
from otel_torchdist.history.model import RankHistory
from otel_torchdist.history.tapes import history_of
from otel_torchdist.job.runs import Run


@dataclass(slots=True)
class Source:
    """Histories to compute statistics of, and what was found out while they were read.

    Attributes:
        headline: What they are of.
        run_id: Id of their run, 32 hex digits; None if it has none.
        place: The directory or files that they are read from.
        histories: To be read once.
        warnings: What could not be read, once they have been read.
    """

    headline: str
    run_id: str | None
    place: str
    histories: Iterator[RankHistory]
    warnings: list[str] = field(default_factory=list[str])


def source_of_run(run: Run) -> Source:
    """Read a run from its tapes; its ranks may be running."""
    begun, label = day_and_time(run.begun_ns), run.label or "without an id"
    source = Source(
        headline=f"run {label}, started {begun} on {run.host}, {len(run.ranks)} of {run.world_size} ranks report",
        run_id=f"{run.run_id:032x}" if run.run_id else None,
        place=str(run.directory),
        histories=iter(()),
    )
    source.histories = _read(run, source.warnings, time.monotonic_ns())
    return source


def _read(run: Run, warnings: list[str], now_ns: int) -> Iterator[RankHistory]:
    """Read one tape after the other, up to the same moment: else ranks that are read later would have called more."""
    for tape in run.tapes:
        try:
            history = history_of(tape)
        except TapeError as error:
            warnings.append(f"{tape.path}: {error}")
            continue
        entered = tuple(view for view in history.operations if view.record.entered_ns <= now_ns)
        yield dataclasses.replace(history, operations=entered)
