"""`otel-torchdist export --perfetto`: writes a timeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from otel_torchdist.analysis.clocks.alignment import ClockAligner
from otel_torchdist.analysis.timeline.drawing import aligned, timeline_of
from otel_torchdist.analysis.timeline.rank_timeline import DrawnStall, Extent, RankTimeline
from otel_torchdist.analysis.timeline.trace import MARK, TraceWriter
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.text import fail, shown
from otel_torchdist.cli.output.work import BYTES
from otel_torchdist.cli.targets import warn, without_calls
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.text import name_ranks
from otel_torchdist.runs.diagnosis.diagnosis import diagnose_run
from otel_torchdist.runs.diagnosis.leftovers import judge_dumps
from otel_torchdist.runs.histories import Source, reopened, source_of_run, timed_source_of
from otel_torchdist.runs.targets import Target, chosen_run
from otel_torchdist.sources.archive.reading import is_archive
from otel_torchdist.sources.flight.reading.reader import read_dumps
from otel_torchdist.sources.flight.reading.sources import count_files
from otel_torchdist.sources.history.call_table import CallTable
from otel_torchdist.system.files.outputs import OutputError, check_output, write_output
from otel_torchdist.system.progress import progress, track
from otel_torchdist.system.this_process.commands import without_collecting_garbage


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The calls of a job and the state at its end.

    Attributes:
        source: The calls.
        incident: The stall, if any.
        moment_ns: The last known moment, nanoseconds since the epoch; None if unknown.
        center_ns: Start of the stall, or else the last moment, by the same clock.
    """

    source: Source
    incident: DrawnStall | None
    moment_ns: int | None
    center_ns: int | None


def judge(wanted: Target) -> JobEnd:
    """Judge a run or dumps; ends the command if there is none. Archives and traces hold no state of a hang."""
    config = Config.from_environment()
    if wanted.paths and all(map(is_archive, wanted.paths)):
        return JobEnd(timed_source_of(wanted), None, None, None)
    rules = StallRules.from_config(config, None)
    return _judge_dumps(wanted, rules) if wanted.paths else _judge_run(wanted, config, rules)


def _judge_run(wanted: Target, config: Config, rules: StallRules) -> JobEnd:
    chosen = chosen_run(config, wanted.run, wanted.run_dir)
    source = source_of_run(chosen.run)
    source.warnings.extend(chosen.unreadable)
    try:
        with reopened(chosen.run) as run:
            diagnosis = diagnose_run(run, rules)
    except TapeError:
        return JobEnd(source, None, None, None)  # `source` reads the same tapes and reports the reason
    verdict, moment_ns = diagnosis.post_mortem.verdict, diagnosis.wall_ns(diagnosis.moment_ns)
    if verdict is None:
        return JobEnd(source, None, moment_ns, moment_ns)
    incident = _incident(verdict, diagnosis.verdict_text)
    return JobEnd(source, incident, moment_ns, diagnosis.wall_ns(incident.since_ns))


def _judge_dumps(wanted: Target, rules: StallRules) -> JobEnd:
    with progress("Reading dumps", "dumps", count_files(wanted.paths)) as advance:
        dumps = read_dumps(wanted.paths, advance=advance).dumps
    source = timed_source_of(wanted)
    if not dumps:
        return JobEnd(source, None, None, None)
    judgment = judge_dumps(dumps, rules, 0)
    if not judgment.verdicts:
        return JobEnd(source, None, judgment.moment_ns, judgment.moment_ns)
    incident = _incident(judgment.verdicts[0], judgment.text_of(judgment.verdicts[0]))
    return JobEnd(source, incident, judgment.moment_ns, incident.since_ns)


def _incident(verdict: Verdict, text: str) -> DrawnStall:
    return DrawnStall(text, verdict.since_ns, verdict.ranks, verdict.waiting, verdict.operation_id)


MAX_SLICES: Final = 1_000_000
"""Upper bound on slices. So many slices make a file of some 100 MB, for which Perfetto's UI needs 1 GB of memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The part of a timeline that the user wants.

    Attributes:
        ranks: Ranks; None for all.
        steps: First and last step; None for all.
        around_ns: Greatest distance from the incident or the end; None for everything.
        max_slices: A larger timeline is not written.
    """

    ranks: frozenset[int] | None
    steps: tuple[int, int] | None
    around_ns: int | None
    max_slices: int = MAX_SLICES


def export_perfetto(wanted: Target, path: Path, limits: Limits, force: bool) -> None:
    """Write a timeline; ends the command on errors."""
    try:
        check_output(path, MARK.encode(), force)
    except OutputError as error:
        fail(str(error), ExitCode.NO_DIRECTORY)
    job_end = judge(wanted)
    if limits.around_ns is not None and job_end.center_ns is None:
        fail("--around: neither a stall nor an end of the job is known from these files", ExitCode.NOTHING_FOUND)
    window = None
    if limits.around_ns is not None and job_end.center_ns is not None:
        window = job_end.center_ns - limits.around_ns, job_end.center_ns + limits.around_ns
    aligner = ClockAligner()
    try:
        with without_collecting_garbage():
            ranks = _read(job_end.source, aligner, Extent(limits.ranks, limits.steps, window), limits.max_slices)
            alignment = aligner.alignment()
            if len(alignment.clocks) > 1:
                ranks = [aligned(rank, alignment) for rank in ranks]
            trace = TraceWriter(ranks, job_end.incident, f"Clocks: {alignment.sentence}", job_end.moment_ns or 0)
            size = write_output(path, track(trace.pieces(), "Writing the timeline", BYTES, size=len))
    except OutputError as error:
        fail(str(error), ExitCode.NOT_WRITTEN)
    count = sum(rank.size for rank in ranks)
    typer.echo(job_end.source.headline)
    typer.echo(f"{shown(path)}: {count:,} slices of {name_ranks([rank.rank for rank in ranks])}, {size:,} bytes")
    typer.echo(f"clocks: {alignment.sentence}")
    if job_end.incident is not None:
        typer.echo(f"incident: {job_end.incident.text}")
    typer.echo("open it at https://ui.perfetto.dev, which keeps it in your browser")


def _read(source: Source, aligner: ClockAligner, extent: Extent, max_slices: int) -> list[RankTimeline]:
    """Reduce histories to timelines, one after the other. Beyond the limit, slices are only counted."""
    ranks: list[RankTimeline] = []
    table = CallTable()
    total = ranks_read = 0
    for history in source.histories:
        ranks_read += 1
        calls = table.columns_of(history)
        aligner.add(calls)
        if extent.ranks is not None and history.rank not in extent.ranks:
            continue
        timeline = timeline_of(calls, aligner.wall_offset_ns(calls), extent)
        total += timeline.size
        if total > max_slices:
            ranks.clear()
        else:
            ranks.append(timeline)
    warn(source.warnings)
    if total > max_slices:
        fail(
            f"{total:,} slices, more than the {max_slices:,} that Perfetto shows well; choose fewer with --ranks 0-7, "
            "--steps 100-120 or --around 60s",
            ExitCode.NOT_WRITTEN,
        )
    warn(without_calls(extent.ranks, (rank.rank for rank in ranks)))
    if not total:
        reason = "no matching call; nothing was written" if ranks_read else source.empty_message
        fail(f"{source.location}: {reason}", ExitCode.NOTHING_FOUND)
    return sorted(ranks, key=lambda rank: rank.rank)
