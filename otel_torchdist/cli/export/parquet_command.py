"""`export --parquet`: where the segments come from, and what is reported."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import typer

from otel_torchdist.archive.decoding import Columns
from otel_torchdist.archive.reading import ArchivedRun, is_archive, segments_of
from otel_torchdist.archive.tapes import segments_of_tape
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.export.parquet import ParquetError, check_place, write_parquet
from otel_torchdist.cli.output.text import fail, shown
from otel_torchdist.cli.targets import Target, chosen_archived_run, chosen_run, warn, without_calls
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.job.runs.runs import Run
from otel_torchdist.naming import readable
from otel_torchdist.this_process.commands import without_collecting_garbage


def export_parquet(wanted: Target, folder: Path, ranks: frozenset[int] | None, force: bool) -> None:
    """Write a run's tables; ends the command if that is not possible.

    Args:
        wanted: The run, or its archive.
        folder: Where files are written.
        ranks: Those whose operations are written; None for all.
        force: Whether the folder may hold other files.
    """
    if find_spec("pyarrow") is None:
        fail("--parquet needs pyarrow: pip install 'otel-torchdist[analysis]'", ExitCode.UNAVAILABLE)
    if wanted.paths and not all(map(is_archive, wanted.paths)):
        fail(
            f"{readable(str(wanted.paths[0]))}: not an archive; --parquet reads archives and tapes",
            ExitCode.NOTHING_FOUND,
        )
    notes: list[str] = []
    try:
        check_place(folder, force)
        if wanted.paths:
            archived, notes = chosen_archived_run(wanted.paths, wanted.run)
            label, known = archived.label, {rank.rank for rank in archived.ranks}
            segments = _of_archive(archived, ranks, notes)
        else:
            chosen = chosen_run(Config.from_environment(), wanted.run, wanted.run_dir)
            notes.extend(chosen.unreadable)
            label, known = chosen.run.label or "-", set(chosen.run.ranks)
            segments = _of_tapes(chosen.run, ranks, notes)
        notes.extend(without_calls(ranks, known))
        if ranks is not None and not ranks & known:
            warn(notes)
            fail(f"run {label}: no call that was asked for; nothing was written", ExitCode.NOTHING_FOUND)
        with without_collecting_garbage():
            written = write_parquet(folder, segments)
    except ParquetError as error:
        fail(str(error), ExitCode.NO_DIRECTORY)
    warn(notes)
    counts = ", ".join(
        f"{rows:,} {name.removesuffix('s') if rows == 1 else name}" for name, rows in written.rows.items()
    )
    typer.echo(f"run {label} in {shown(folder)}: {counts}; {written.bytes:,} bytes")
    typer.echo(f"query with: duckdb -c \"SELECT * FROM '{shown(folder)}/operations.parquet' LIMIT 10\"")


def _of_archive(run: ArchivedRun, ranks: frozenset[int] | None, notes: list[str]) -> Iterator[Iterator[Columns]]:
    for rank in run.ranks:
        if ranks is None or rank.rank in ranks:
            yield segments_of(rank, notes)


def _of_tapes(run: Run, ranks: frozenset[int] | None, notes: list[str]) -> Iterator[list[Columns]]:
    now_ns = time.monotonic_ns()
    for tape in run.tapes:
        if ranks is not None and tape.identity.rank not in ranks:
            continue
        try:
            yield segments_of_tape(tape, now_ns)
        except TapeError as error:
            notes.append(f"{tape.path}: {error}")
