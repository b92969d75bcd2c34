"""`otel-torchdist demo`: its options, and how it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console

from otel_torchdist.cli.analyze.html.gather import subject_of_run
from otel_torchdist.cli.analyze.html.writing import write_report
from otel_torchdist.cli.demo.findings import closing_lines
from otel_torchdist.cli.demo.job import Scratch, missing_packages, scratch
from otel_torchdist.cli.demo.options import VERDICT_WITHIN_S, DemoOptions, Fault, Protocol, story, training_continues
from otel_torchdist.cli.demo.run import DemoRun
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.terminal import CommandConsole, can_redraw, live_display
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.watch.views import LiveView, PlainView, View
from otel_torchdist.config import Config, PageAccess
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.node.job.directory import base_directory, job_directories
from otel_torchdist.node.job.runs.runs import index_of
from otel_torchdist.show.report.build import ReportChoice
from otel_torchdist.show.report.document import MARKER
from otel_torchdist.system.files.outputs import OutputError, check_output
from otel_torchdist.system.this_process.commands import StopSignals

_FAULTS: Final = "; ".join(f"{fault.value}: {story(fault, 'a rank', 'a while')}" for fault in Fault)


def demo(
    fault: Annotated[Fault, typer.Option(metavar="NAME", help=f"The fault to inject. {_FAULTS}.")] = Fault.LATE,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send the spans to this Jaeger or Collector too."),
    ] = None,
    protocol: Annotated[
        Protocol | None,
        typer.Option(help="Protocol of that endpoint. Without it: HTTP for port 4318, else gRPC."),
    ] = None,
    output: Annotated[
        Path, typer.Option(dir_okay=False, help="File for the spans, as OTLP JSON lines; it is overwritten.")
    ] = Path("torchdist-demo.jsonl"),
    report: Annotated[
        Path | None,
        typer.Option(metavar="OUT.html", show_default=False, help="Write a report on the run, a page for browsers."),
    ] = None,
    ranks: Annotated[int, typer.Option(min=2, help="Number of ranks.")] = 4,
    steps: Annotated[int, typer.Option(min=30, help="Number of training steps.")] = 240,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the training, and of the step with the fault."),
    ] = None,
    block_seconds: Annotated[
        float,
        typer.Option(min=0, help="Duration of the fault in seconds. A job that hangs forever is ended after it."),
    ] = 20.0,
    threshold: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which an open operation counts as stalled.")
    ] = 5.0,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines, as without a terminal.")] = False,
) -> None:
    """For a first look: train on four ranks, inject a fault into one of them, and show the diagnosis.

    The job is real: DistributedDataParallel on scikit-learn's digits, under torchrun. The training script knows nothing
    of OpenTelemetry; an environment variable switches it on. The fault comes at a random step in the middle. The demo
    succeeds if the expected verdict comes in time.
    """
    options = DemoOptions(
        ranks=ranks,
        steps=steps,
        seed=secrets.randbelow(10_000) if seed is None else seed,
        fault=fault,
        threshold_s=threshold,
        block_s=block_seconds,
        output=output,
        endpoint=otlp_endpoint,
        protocol=protocol,
        plain=plain,
        report=report,
    )
    _check(options)
    console = CommandConsole(highlight=False)
    with StopSignals() as stop:
        try:
            _run_demo(options, console, stop)
        except TapeError as error:
            fail(str(error), ExitCode.NO_DIRECTORY)
        except OSError as error:
            if not stop.explain(error):
                raise
        if stop.received is not None:
            raise typer.Exit(ExitCode.of_signal(stop.received))


def _check(options: DemoOptions) -> None:
    """Check that the demo can work; ends the command with a message if it cannot.

    Raises:
        typer.BadParameter: An option is invalid.
    """
    missing = missing_packages()
    if missing:
        fail(f"the demo needs {' and '.join(missing)}: pip install 'otel-torchdist[demo]'", ExitCode.UNAVAILABLE)
    needed_s = options.threshold_s + VERDICT_WITHIN_S
    if options.block_s <= needed_s:
        raise typer.BadParameter(
            f"{options.block_s:g} s are too short: with a threshold of {options.threshold_s:g} s it must be more than "
            f"{needed_s:g} s, or the stall may be over before it is reported.",
            param_hint="--block-seconds",
        )
    try:
        if options.report is not None:
            check_output(options.report, MARKER.encode(), force=False)
    except OutputError as error:
        raise typer.BadParameter(str(error), param_hint="--report") from error
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_bytes(b"")
    except OSError as error:
        raise typer.BadParameter(f"{options.output}: {error.strerror}", param_hint="--output") from error


def _run_demo(options: DemoOptions, console: Console, stop: StopSignals) -> None:
    logging.getLogger("otel_torchdist").setLevel(logging.INFO)
    config = Config.from_environment()
    base = base_directory(config.tape_dir, config.tape_on_disk)
    with scratch(base) as directories, _view(options, console) as view:
        view.report(
            f"Training on scikit-learn's digits: {options.ranks} ranks, gloo, DistributedDataParallel, "
            f"{options.steps} steps, seed {options.seed}."
        )
        view.report(
            f"Somewhere in the middle {story(options.fault, f'rank {options.faulty_rank}', f'{options.block_s:g} s')}. "
            f"An operation that is open for {options.threshold_s:g} s counts as stalled."
        )
        demo_run = DemoRun(options, view, stop, config.page is not PageAccess.OFF)
        demo_run.run(directories)
        report_line = _report(options, directories) if stop.received is None else ""
    if stop.received is None:
        _conclude(demo_run, console, report_line)
    else:
        console.print(f"Stopped by {stop.received.name}: no process of the training is left.")


@contextlib.contextmanager
def _view(options: DemoOptions, console: Console) -> Generator[View]:
    if options.plain or os.environ.get("NO_COLOR") or not can_redraw(console):
        yield PlainView(console)
        return
    with live_display(console) as live:
        yield LiveView(live)


def _report(options: DemoOptions, directories: Scratch) -> str:
    """Write the report while the tapes exist. Returns a line about it, or '' if none was requested."""
    if options.report is None:
        return ""
    rules = StallRules(round(options.threshold_s * 1e9))
    index = index_of(list(job_directories(directories.tapes)))
    run = next((run for run in index.runs if run.helps is None), None)
    if run is None:
        return "No report: no rank has left a tape."
    return write_report(options.report, subject_of_run(run, index.helpers_of(run), rules), rules, ReportChoice())


def _conclude(demo_run: DemoRun, console: Console, report_line: str) -> None:
    findings = demo_run.findings
    is_failure_expected = findings.latest is not None and not training_continues(findings.options.fault)
    if demo_run.exit_code != 0 and not is_failure_expected:
        _fail(demo_run, f"the training failed: torchrun ended with exit code {demo_run.exit_code}")
    console.print()
    for line in closing_lines(findings, demo_run.training, demo_run.endpoint, demo_run.dropped):
        console.print(line, markup=False, soft_wrap=True)
    if report_line:
        console.print(f"Report, for any browser: {report_line}", markup=False, soft_wrap=True)
    if not findings.is_in_time:
        _fail(demo_run, "the expected verdict did not come in time")


def _fail(demo_run: DemoRun, message: str) -> NoReturn:
    if demo_run.errors:
        typer.echo(demo_run.errors, err=True)
    fail(message, ExitCode.DEMO_FAILED)
