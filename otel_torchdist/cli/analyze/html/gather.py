"""Builds a report from a run or from dumps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from otel_torchdist.analysis.result import advice_results
from otel_torchdist.analysis.statistics.result import CountDifference, Statistics
from otel_torchdist.cli.analyze.calls import describe_difference
from otel_torchdist.cli.analyze.html.conclusions import conclusions_of_dumps, conclusions_of_run
from otel_torchdist.cli.analyze.html.world import world_of
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.text import fail
from otel_torchdist.config import Config
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.text import compress_ranks, readable
from otel_torchdist.model.times import day_and_time
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.runs.histories import Source, reopened, source_of_run, timed_source_of
from otel_torchdist.runs.targets import Target, chosen_run
from otel_torchdist.show.report.build import ReportBasis, ReportChoice, report_basis, windows_of
from otel_torchdist.show.report.document import Conclusion, Heading, RunReport
from otel_torchdist.show.report.figures import (
    MAX_ROWS,
    calls_in,
    longest_of,
    matrix_of,
    ranks_in,
    skews_in,
    step_columns,
)
from otel_torchdist.show.report.incidents import MAX_INCIDENTS, incident_of
from otel_torchdist.sources.archive.reading import is_archive
from otel_torchdist.sources.profiles.reading.reader import kinds_in
from otel_torchdist.system.progress import progress
from otel_torchdist.system.this_process.commands import without_collecting_garbage

_MAX_SKEWS: Final = 200
_MAX_DIFFERENCES: Final = 20


@dataclass(frozen=True, slots=True)
class Subject:
    """A run, or the files of a job, with the conclusions on it.

    Attributes:
        title: `run 1a2b3c4d`, or a description of the files.
        began: Start of the run, local time; '' if unknown.
        source: The calls.
        conclusions: The conclusions of `diagnose`.
        warnings: Unreadable parts.
    """

    title: str
    began: str
    source: Source
    conclusions: Sequence[Conclusion]
    warnings: Sequence[str]


def subject_of(wanted: Target, rules: StallRules) -> Subject:
    """Return the requested run or files; ends the command if there is no such run."""
    if wanted.paths:
        source = timed_source_of(wanted)
        # Archives and traces hold no state of a hang, so there is nothing to judge.
        is_judged = not all(map(is_archive, wanted.paths)) and not kinds_in(wanted.paths).traces
        conclusions, notes = conclusions_of_dumps(wanted.paths, rules) if is_judged else ([], [])
        return Subject(
            source.headline, "", source, conclusions, [note for note in notes if note not in source.warnings]
        )
    chosen = chosen_run(Config.from_environment(), wanted.run, wanted.run_dir)
    helpers = chosen.index.helpers_of(chosen.run)
    subject = subject_of_run(chosen.run, helpers, rules)
    subject.source.warnings.extend(chosen.unreadable)
    return subject


def subject_of_run(run: Run, helpers: Sequence[Run], rules: StallRules) -> Subject:
    """Return a recorded run with the conclusions on it and on the runs of its helper processes."""
    with reopened(run) as reopened_run:  # `source` reads the tapes of `run` itself
        conclusions, warnings = conclusions_of_run(reopened_run, helpers, rules)
    source = source_of_run(run)
    title = f"run {run.label}" if run.label else "a run without an id"
    return Subject(title, day_and_time(run.begun_ns), source, conclusions, warnings)


def report_of(subject: Subject, rules: StallRules, choice: ReportChoice) -> RunReport:
    """Build the report; ends the command if there are no calls."""
    source = subject.source
    with without_collecting_garbage(), progress("Building the report"):
        basis = report_basis(source.histories, rules.threshold_ns)
        statistics = basis.analysis.statistics
        if not statistics.ranks:
            fail(f"{source.location}: {source.empty_message}", ExitCode.NOTHING_FOUND)
        named = [rank for conclusion in subject.conclusions for rank in conclusion.ranks]
        is_hung = any(conclusion.tone == "bad" for conclusion in subject.conclusions)
        windows = windows_of(basis, named, is_hung, choice, source.read_again, _to_millisecond)
    world = world_of(basis.analysis.graph) if basis.analysis.graph is not None else None
    hosts = {name: index for index, name in enumerate(world.host_names)} if world is not None else {}
    path, left_out = longest_of(basis.analysis.path) if basis.analysis.path is not None else (None, 0)
    rows, skews = calls_in(statistics.rows), skews_in(statistics.groups)
    steps = basis.recorded.steps
    return RunReport(
        heading=_heading(subject, basis),
        conclusions=tuple(subject.conclusions),
        incidents=tuple(incident_of(wait, steps, _to_millisecond) for wait in basis.waits[:MAX_INCIDENTS]),
        world=world,
        matrix=matrix_of(basis.analysis.graph) if basis.analysis.graph is not None else None,
        windows=tuple(windows),
        calls=tuple(rows[:MAX_ROWS]),
        calls_left_out=max(0, len(rows) - MAX_ROWS),
        differences=tuple(_differences(statistics.differences)),
        ranks=ranks_in(statistics.ranks, steps, hosts),
        skews=tuple(skews[:_MAX_SKEWS]),
        skews_left_out=max(0, len(skews) - _MAX_SKEWS),
        steps=step_columns(steps),
        path=path,
        pieces_left_out=left_out,
        advice=advice_results(basis.analysis),
        notes=tuple(readable(note) for note in dict.fromkeys([*source.warnings, *subject.warnings])),
    )


def _heading(subject: Subject, basis: ReportBasis) -> Heading:
    statistics = basis.analysis.statistics
    ended_ns = basis.recorded.ended_ns
    size = max(basis.analysis.world_size, statistics.ranks[-1].rank + 1)
    return Heading(
        title=subject.title,
        run=subject.source.run_id,
        place=subject.source.location,
        began=subject.began,
        seen_until=_to_millisecond(ended_ns) if ended_ns else "",
        made=day_and_time(time.time_ns()),
        made_by=f"otel-torchdist {version('otel-torchdist')}",
        world_size=size,
        known_ranks=len(statistics.ranks),
        unknown_ranks=compress_ranks(basis.analysis.unknown),
        hosts=tuple(_hosts(statistics)),
        calls=sum(rank.calls for rank in statistics.ranks),
        lost=sum(rank.lost for rank in statistics.ranks),
    )


def _hosts(statistics: Statistics) -> list[tuple[str, str]]:
    counts = Counter(rank.host for rank in statistics.ranks if rank.host)
    return [
        (readable(host), compress_ranks(rank.rank for rank in statistics.ranks if rank.host == host)) for host in counts
    ]


def _differences(differences: Sequence[CountDifference]) -> list[str]:
    sentences = [describe_difference(difference) for difference in differences[:_MAX_DIFFERENCES]]
    more = len(differences) - len(sentences)
    return [*sentences, f"and {more:,} more; `otel-torchdist analyze --only calls` lists them"] if more else sentences


def _to_millisecond(wall_ns: int) -> str:
    """Format a time with its date, to the millisecond."""
    milliseconds = wall_ns // 1_000_000
    return f"{day_and_time(wall_ns)}.{milliseconds % 1000:03d}"
