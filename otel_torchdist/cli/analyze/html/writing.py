"""Writes the report of `analyze --html`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from otel_torchdist.cli.analyze.html.gather import Subject, report_of, subject_of
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.text import fail, shown
from otel_torchdist.cli.targets import warn, without_calls
from otel_torchdist.config import Config
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.text import amount
from otel_torchdist.runs.targets import Target
from otel_torchdist.show.report.build import ReportChoice
from otel_torchdist.show.report.document import MARKER, html_of_report
from otel_torchdist.system.files.outputs import OutputError, check_output, write_output


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Options of a report.

    Attributes:
        ranks: Ranks in the timeline; None for automatic choice.
        steps: First and last step in the timeline; None for automatic choice.
        threshold_s: Age from which an open operation counts as stalled; None for the configured value.
        force: Whether to replace a file that is not a report.
    """

    ranks: frozenset[int] | None
    steps: tuple[int, int] | None
    threshold_s: float | None
    force: bool


def write_page(out: Path, wanted: Target, options: PageOptions) -> str:
    """Write a report and return a line with its location. Ends the command on errors."""
    steps = options.steps
    choice = ReportChoice(options.ranks, range(steps[0], steps[1] + 1) if steps is not None else None)
    rules = StallRules.from_config(Config.from_environment(), options.threshold_s)
    try:
        check_output(out, MARKER.encode(), options.force)
    except OutputError as error:
        fail(str(error), ExitCode.NO_DIRECTORY)
    return write_report(out, subject_of(wanted, rules), rules, choice)


def write_report(out: Path, subject: Subject, rules: StallRules, choice: ReportChoice) -> str:
    """Write the report on a run or dumps and return a line with its location. Ends the command on errors."""
    report = report_of(subject, rules, choice)
    warn(report.notes)
    if choice.steps is not None and not report.windows:
        warn([f"--steps: no rank has recorded the steps {choice.steps.start}-{choice.steps.stop - 1} to their ends"])
    warn(without_calls(choice.ranks, report.ranks.rank))
    try:
        size = write_output(out, [html_of_report(report).encode()])
    except OutputError as error:
        fail(str(error), ExitCode.NOT_WRITTEN)
    return f"{shown(out)}: {report.heading.title}, {amount(size)}"
