"""Histories from dumps of the flight recorder, in a folder, a file or an archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from otel_torchdist.cli.stats.source import Source
from otel_torchdist.flight.dump import FlightDump
from otel_torchdist.flight.durations import with_durations
from otel_torchdist.flight.history import each_history
from otel_torchdist.flight.reading.reader import read_all_entries
from otel_torchdist.history.model import RankHistory
from otel_torchdist.naming import readable


def source_of_dumps(paths: Sequence[Path]) -> Source:
    """Read the dumps of one job."""
    dumps, notes = read_all_entries(paths)
    return Source(
        headline=f"dumps of the flight recorder of {len(dumps)} rank{'s' * (len(dumps) != 1)}",
        run_id=None,
        place=", ".join(readable(str(path)) for path in paths),
        histories=_histories(dumps),
        warnings=list(notes),
    )


def _histories(dumps: Sequence[FlightDump]) -> Iterator[RankHistory]:
    by_rank = {dump.rank: dump for dump in dumps}
    for history in each_history(dumps):
        yield with_durations(history, by_rank[history.rank])
