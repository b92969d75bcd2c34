"""Histories from dumps of the flight recorder: the newest of each rank, from a folder, a file or an archive."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from otel_torchdist.cli.stats.source import Source
from otel_torchdist.flight.dump import FlightDump
from otel_torchdist.flight.durations import with_durations
from otel_torchdist.flight.history import histories_of
from otel_torchdist.flight.reading.decoding import DumpError, decode
from otel_torchdist.flight.reading.file_names import rank_in
from otel_torchdist.flight.reading.sources import FoundFile, Skipped, find_files
from otel_torchdist.history.model import RankHistory
from otel_torchdist.naming import readable


def source_of_dumps(path: Path) -> Source:
    """Read all dumps below a path."""
    source = Source(headline="dumps of the flight recorder", run_id=None, place=readable(str(path)), histories=iter(()))
    dumps = _newest_of_each_rank(path, source.warnings)
    source.headline = f"dumps of the flight recorder of {len(dumps)} rank{'s' * (len(dumps) != 1)}"
    source.histories = _histories(dumps)
    return source


def _histories(dumps: dict[int, FlightDump]) -> Iterator[RankHistory]:
    for history in histories_of(list(dumps.values())):
        yield with_durations(history, dumps.pop(history.rank))


def _newest_of_each_rank(path: Path, warnings: list[str]) -> dict[int, FlightDump]:
    skipped = Skipped()
    found: dict[int, FlightDump] = {}
    for file in find_files([path], skipped):
        dump = _dump(file, warnings)
        if dump is None:
            continue
        other = found.get(dump.rank)
        if other is not None:
            older, dump = sorted((other, dump), key=_newest_ns)
            warnings.append(f"{older.path}: {dump.path} is a newer dump of rank {dump.rank}, and is taken instead")
        found[dump.rank] = dump
    warnings += skipped.problems
    return found


def _dump(file: FoundFile, warnings: list[str]) -> FlightDump | None:
    rank = rank_in(file.name)
    try:
        decoded = decode(file.content, rank or 0, file.path)
    except DumpError as error:
        warnings.append(f"{file.path}: {error}")
        return None
    if decoded.bad_parts:
        warnings.append(f"{file.path}: {decoded.bad_parts} parts of it are left out ({decoded.first_fault})")
    own = rank if decoded.rank is None else decoded.rank
    if own is None:
        warnings.append(f"{file.path}: neither its name nor its content says of which rank it is")
        return None
    return dataclasses.replace(decoded.dump, rank=own)


def _newest_ns(dump: FlightDump) -> int:
    return max((max(entry.created_ns, entry.completed_ns or 0) for entry in dump.entries), default=0)
