"""Archives in a form that tests can compare."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from otel_torchdist.model.history import RankHistory
from otel_torchdist.sources.archive.reading import ArchivedRun, history_of, runs_in, segments_of


def run_in(archive: Path) -> ArchivedRun:
    """The only run of an archive without a fault."""
    [run], notes = runs_in([archive])
    assert notes == []
    return run


def histories_in(archive: Path) -> list[RankHistory]:
    """What the ranks of the only run have called."""
    notes: list[str] = []
    found = [history_of(rank, notes) for rank in run_in(archive).ranks]
    assert notes == []
    return [history for history in found if history is not None]


def times_archived(archive: Path) -> dict[int, Counter[int]]:
    """How often each ended operation of each rank was written, by its number."""
    counted: dict[int, Counter[int]] = {}
    for rank in run_in(archive).ranks:
        segments = segments_of(rank, [])
        counted[rank.rank] = Counter(number for columns in segments for number in columns.ended[0])
    return counted
