"""Where recorded calls come from, one rank at a time, and in what words they are introduced."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from otel_torchdist.cli.targets import Target, chosen_run
from otel_torchdist.cli.text import day_and_time
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.flight.condensed import CondensedDump
from otel_torchdist.flight.durations import with_durations
from otel_torchdist.flight.groups import JobGroups
from otel_torchdist.flight.history import history_of as history_of_dump
from otel_torchdist.flight.reading.reader import read_dumps, read_whole
from otel_torchdist.history.model import RankHistory
from otel_torchdist.history.tapes import history_of
from otel_torchdist.job.runs import Run
from otel_torchdist.naming import readable
from otel_torchdist.tape.reading.reader import TapeReader


@dataclass(slots=True)
class Source:
    """Histories, and what was found out while they were read.

    Attributes:
        headline: What they are of.
        run_id: Id of their run, 32 hex digits; None if it has none.
        place: The directory or files that they are read from.
        histories: To be read once.
        again: Reads those of some ranks once more, without further warnings.
        warnings: What could not be read, once they have been read.
    """

    headline: str
    run_id: str | None
    place: str
    histories: Iterator[RankHistory]
    again: Callable[[Collection[int]], Iterator[RankHistory]]
    warnings: list[str] = field(default_factory=list[str])


def source_of(wanted: Target) -> Source:
    """Read a run or dumps; ends the command if there is no such run."""
    if wanted.paths:
        return source_of_dumps(wanted.paths)
    chosen = chosen_run(Config.from_environment(), wanted.run, wanted.run_dir)
    source = source_of_run(chosen.run)
    source.warnings.extend(chosen.unreadable)
    return source


def source_of_run(run: Run) -> Source:
    """Read a run from its tapes; its ranks may be running."""
    begun, label = day_and_time(run.begun_ns), run.label or "without an id"
    source = Source(
        headline=f"run {label}, started {begun} on {run.host}, {len(run.ranks)} of {run.world_size} ranks report",
        run_id=f"{run.run_id:032x}" if run.run_id else None,
        place=str(run.directory),
        histories=iter(()),
        again=lambda ranks: _tapes(_anew(run.tapes, ranks), [], now_ns),
    )
    now_ns = time.monotonic_ns()
    source.histories = _tapes(run.tapes, source.warnings, now_ns)
    return source


def _anew(tapes: Iterable[TapeReader], ranks: Collection[int]) -> Iterator[TapeReader]:
    """Open tapes from their beginning, one after the other."""
    for tape in tapes:
        if tape.identity.rank in ranks:
            with contextlib.suppress(TapeError), contextlib.closing(TapeReader(tape.path)) as anew:
                yield anew


def _tapes(tapes: Iterable[TapeReader], warnings: list[str], now_ns: int) -> Iterator[RankHistory]:
    """Read one tape after the other, up to the same moment: else ranks that are read later would have called more."""
    for tape in tapes:
        try:
            history = history_of(tape)
        except TapeError as error:
            warnings.append(f"{tape.path}: {error}")
            continue
        entered = tuple(view for view in history.operations if view.record.entered_ns <= now_ns)
        yield dataclasses.replace(history, operations=entered)


def source_of_dumps(paths: Sequence[Path]) -> Source:
    """Read the dumps of one job."""
    found = read_dumps(paths)
    count = len(found.dumps)
    return Source(
        headline=f"dumps of the flight recorder of {count} rank{'s' * (count != 1)}",
        run_id=None,
        place=", ".join(readable(str(path)) for path in paths),
        histories=_dumps(paths, found.dumps),
        again=lambda ranks: (history for history in _dumps(paths, found.dumps) if history.rank in ranks),
        warnings=list(found.notes),
    )


def _dumps(paths: Sequence[Path], dumps: Sequence[CondensedDump]) -> Iterator[RankHistory]:
    groups = JobGroups([one.dump for one in dumps])
    for dump in read_whole(paths, dumps):
        yield with_durations(history_of_dump(dump, groups), dump)
