"""Histories from dumps of the flight recorder, in a folder, a file or an archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from otel_torchdist.cli.stats.source import Source
from otel_torchdist.flight.condensed import CondensedDump
from otel_torchdist.flight.durations import with_durations
from otel_torchdist.flight.groups import JobGroups
from otel_torchdist.flight.history import history_of
from otel_torchdist.flight.reading.reader import read_dumps, read_whole
from otel_torchdist.history.model import RankHistory
from otel_torchdist.naming import readable


def source_of_dumps(paths: Sequence[Path]) -> Source:
    """Read the dumps of one job."""
    found = read_dumps(paths)
    count = len(found.dumps)
    return Source(
        headline=f"dumps of the flight recorder of {count} rank{'s' * (count != 1)}",
        run_id=None,
        place=", ".join(readable(str(path)) for path in paths),
        histories=_histories(paths, found.dumps),
        warnings=list(found.notes),
    )


def _histories(paths: Sequence[Path], dumps: Sequence[CondensedDump]) -> Iterator[RankHistory]:
    groups = JobGroups([one.dump for one in dumps])
    for dump in read_whole(paths, dumps):
        yield with_durations(history_of(dump, groups), dump)
