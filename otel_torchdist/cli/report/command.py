"""`otel-torchdist report`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.options import RunDirectory, RunOrDumps, Threshold
from otel_torchdist.cli.output.text import fail, shown
from otel_torchdist.cli.report.gather import Subject, report_of, subject_of
from otel_torchdist.cli.targets import ranks_of, steps_of, target_of, warn, without_calls
from otel_torchdist.config import Config
from otel_torchdist.files.outputs import OutputError, check_output, write_output
from otel_torchdist.report.build import Choice
from otel_torchdist.report.page import MARKER, html_of_report
from otel_torchdist.units import amount
from otel_torchdist.verdict.rules import StallRules


def report(
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT.html", dir_okay=True, help="The file to write.", show_default=False),
    ],
    target: RunOrDumps = None,
    run_dir: RunDirectory = None,
    steps: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="Steps to show in the timeline, such as `100-110`. Without it: the newest steady ones that fit, and "
            "those around long waits.",
        ),
    ] = "",
    ranks: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="Ranks to show in the timeline, such as `0-7,12`. Without it: all, or in a large job those that "
            "matter most.",
        ),
    ] = "",
    threshold: Threshold = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.html even if it is no report.")] = False,
) -> None:
    """To look instead of read: write one HTML file about a run, which any browser opens without a network.

    It holds the verdict, past incidents, the parallelism graph, what moves between ranks, a timeline of calls, and the
    statistics of all ranks. It reads the tapes of a run, whether that is running or has ended, in whatever way, or
    dumps of PyTorch's flight recorder.
    """
    wanted = steps_of(steps)
    choice = Choice(ranks_of(ranks), range(wanted[0], wanted[1] + 1) if wanted is not None else None)
    rules = StallRules.from_config(Config.from_environment(), threshold)
    try:
        check_output(out, MARKER.encode(), force)
    except OutputError as error:
        fail(str(error), ExitCode.NO_DIRECTORY)
    typer.echo(write_report(out, subject_of(target_of(target or [], run_dir), rules), rules, choice))


def write_report(out: Path, subject: Subject, rules: StallRules, choice: Choice) -> str:
    """Write the report on a run or dumps; returns a line on where it is. Ends the command if it cannot."""
    made = report_of(subject, rules, choice)
    warn(made.notes)
    if choice.steps is not None and not made.windows:
        warn([f"--steps: no rank has recorded the steps {choice.steps.start}-{choice.steps.stop - 1} to their ends"])
    warn(without_calls(choice.ranks, made.ranks.rank))
    try:
        size = write_output(out, [html_of_report(made).encode()])
    except OutputError as error:
        fail(str(error), ExitCode.NOT_WRITTEN)
    return f"{shown(out)}: {made.heading.title}, {amount(size)}"
