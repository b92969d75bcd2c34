"""`otel-torchdist export --perfetto`: writes a timeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.export.incident import judge
from otel_torchdist.cli.histories import Source
from otel_torchdist.cli.output.text import fail, shown
from otel_torchdist.cli.targets import Target, warn, without_calls
from otel_torchdist.clocks.alignment import ClockAligner
from otel_torchdist.files.outputs import OutputError, check_output, write_output
from otel_torchdist.history.call_table import CallTable
from otel_torchdist.naming import name_ranks
from otel_torchdist.this_process.commands import without_collecting_garbage
from otel_torchdist.timeline.model import Extent, RankTimeline
from otel_torchdist.timeline.reading import aligned, timeline_of
from otel_torchdist.timeline.trace import MARK, TraceWriter

MAX_SLICES: Final = 1_000_000
"""More than that is some 100 MB, and Perfetto's UI holds ten times as much of it in a browser's memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a user wants to see.

    Attributes:
        ranks: Ranks; None for all.
        steps: First and last step; None for all.
        around_ns: How far from the incident or the end; None for everything.
        most_slices: Beyond that nothing is written.
    """

    ranks: frozenset[int] | None
    steps: tuple[int, int] | None
    around_ns: int | None
    most_slices: int = MAX_SLICES


def export_perfetto(wanted: Target, path: Path, limits: Limits, force: bool) -> None:
    """Write a timeline; ends the command if that is not possible."""
    try:
        check_output(path, MARK.encode(), force)
    except OutputError as error:
        fail(str(error), ExitCode.NO_DIRECTORY)
    found = judge(wanted)
    if limits.around_ns is not None and found.centre_ns is None:
        fail("--around: neither a stall nor an end of the job is known from this", ExitCode.NOTHING_FOUND)
    window = None
    if limits.around_ns is not None and found.centre_ns is not None:
        window = found.centre_ns - limits.around_ns, found.centre_ns + limits.around_ns
    aligner = ClockAligner()
    try:
        with without_collecting_garbage():
            ranks = _read(found.source, aligner, Extent(limits.ranks, limits.steps, window), limits.most_slices)
            alignment = aligner.alignment()
            if len(alignment.clocks) > 1:
                ranks = [aligned(rank, alignment) for rank in ranks]
            trace = TraceWriter(ranks, found.incident, f"Clocks: {alignment.sentence}", found.moment_ns or 0)
            size = write_output(path, trace.pieces())
    except OutputError as error:
        fail(str(error), ExitCode.NOT_WRITTEN)
    count = sum(rank.size for rank in ranks)
    typer.echo(found.source.headline)
    typer.echo(f"{shown(path)}: {count:,} slices of {name_ranks([rank.rank for rank in ranks])}, {size:,} bytes")
    typer.echo(f"clocks: {alignment.sentence}")
    if found.incident is not None:
        typer.echo(f"incident: {found.incident.text}")
    typer.echo("open it at https://ui.perfetto.dev, which keeps it in your browser")


def _read(source: Source, aligner: ClockAligner, extent: Extent, most: int) -> list[RankTimeline]:
    """Reduce one history after the other; beyond the limit they are only counted."""
    ranks: list[RankTimeline] = []
    table = CallTable()
    total = known = 0
    for history in source.histories:
        known += 1
        calls = table.columns_of(history)
        aligner.add(calls)
        if extent.ranks is not None and history.rank not in extent.ranks:
            continue
        timeline = timeline_of(calls, aligner.wall_offset_ns(calls), extent)
        total += timeline.size
        if total > most:
            ranks.clear()
        else:
            ranks.append(timeline)
    warn(source.warnings)
    if total > most:
        fail(
            f"{total:,} slices, more than the {most:,} that Perfetto shows well; choose fewer with --ranks 0-7, "
            "--steps 100-120 or --around 60s",
            ExitCode.NOT_WRITTEN,
        )
    warn(without_calls(extent.ranks, (rank.rank for rank in ranks)))
    if not total:
        what = "no call that was asked for; nothing was written" if known else source.emptiness
        fail(f"{source.place}: {what}", ExitCode.NOTHING_FOUND)
    return sorted(ranks, key=lambda rank: rank.rank)
