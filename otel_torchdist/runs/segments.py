"""The records of a run as segments, one rank at a time."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.sources.archive.decoding import Columns
from otel_torchdist.sources.archive.reading import ArchivedRun, segments_of
from otel_torchdist.sources.archive.tapes import segments_of_tape
from otel_torchdist.system.progress import progress, track


def segments_of_archive(
    run: ArchivedRun, ranks: Collection[int] | None, notes: list[str]
) -> Iterator[Iterator[Columns]]:
    """Yield the segments of each rank of an archive.

    Args:
        run: The run.
        ranks: The ranks; None for all.
        notes: Receives a line for each failure to read.
    """
    chosen = [rank for rank in run.ranks if ranks is None or rank.rank in ranks]
    with progress("Converting calls", "calls", sum(rank.operations for rank in chosen)) as advance:
        for rank in chosen:
            yield segments_of(rank, notes, advance)


def segments_of_run(run: Run, ranks: Collection[int] | None, notes: list[str]) -> Iterator[list[Columns]]:
    """Yield the records of each tape of a run as segments.

    Args:
        run: The run, with tapes that have not been polled yet.
        ranks: The ranks; None for all.
        notes: Receives a line for each failure to read.
    """
    now_ns = time.monotonic_ns()
    chosen = [tape for tape in run.tapes if ranks is None or tape.identity.rank in ranks]
    for tape in track(chosen, "Converting tapes", "tapes", len(chosen)):
        try:
            yield segments_of_tape(tape, now_ns)
        except TapeError as error:
            notes.append(f"{tape.path}: {error}")
