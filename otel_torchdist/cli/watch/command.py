"""`otel-torchdist watch`: its options, how it finds its job, and how it ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.options import Threshold, complete_target
from otel_torchdist.cli.output.terminal import CommandConsole, can_redraw, live_display
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import target_of
from otel_torchdist.cli.watch.passive import PassiveWatch
from otel_torchdist.cli.watch.session import WatchSession
from otel_torchdist.cli.watch.views import LiveView, PlainView, View
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.node.job.directory import job_directory, tapes_in
from otel_torchdist.node.job.runs.runs import SeveralRunsError, index_of, select, tape_directory, whole_index
from otel_torchdist.node.job.slurm import first_of_slurm_job, this_slurm_job
from otel_torchdist.node.job.tapes import jobs_by_newest_rank
from otel_torchdist.runs.obstacles import with_reasons
from otel_torchdist.system.this_process.commands import StopSignals


def watch(
    run: Annotated[
        str,
        typer.Argument(
            help="The first digits of the run's id. Without it: the job in which a rank started last. With --replay, "
            "a bundle of evidence, too.",
            autocompletion=complete_target,
            show_default=False,
        ),
    ] = "",
    run_dir: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, resolve_path=True, help="The job directory."),
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the first rank.")] = 60.0,
    keep: Annotated[
        float, typer.Option(min=0, help="Seconds to stay after ranks have failed, because they may be restarted.")
    ] = 10.0,
    threshold: Threshold = None,
    shows_moment: Annotated[
        bool,
        typer.Option(
            "--replay", help="Show the table of the last moment of a bundle, a job directory or an ended run, and end."
        ),
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines, as without a terminal.")] = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats", help="At the end count and time all calls, as `otel-torchdist analyze --only calls` does."
        ),
    ] = False,
) -> None:
    """While a job runs on this node: show what each rank is doing, and which one holds the others up.

    It only reads tapes, so any number of watchers can run beside the job's agent. It ends with the job, or with Ctrl-C;
    the exit code is 0 in both cases.
    """
    config = Config.from_environment()
    rules = StallRules.from_config(config, threshold)
    console = CommandConsole(highlight=False)
    if shows_moment:
        from otel_torchdist.cli.watch.replay import replay  # imported on use: `watch` needs nothing of `diagnose`

        replay(target_of([run] if run else [], run_dir), config, rules, console)
        return
    with StopSignals() as stop:
        try:
            job = _find(JobRequest(run, run_dir, config.tape_dir), config, wait, stop, console)
            if job is None:
                return
            passive = PassiveWatch(job.directory, rules, job.run_id)
            with contextlib.closing(passive), _view(console, job.directory, plain) as view:
                session = WatchSession(job.directory, passive, view, keep)
                session.run(stop)
            if stats:  # imported on use: `watch` needs nothing else of `analyze`
                from otel_torchdist.cli.analyze.command import print_calls_of

                print_calls_of(job.directory, session.run_id)
        except OSError as error:
            if not stop.explain(error):
                raise


def _find(request: JobRequest, config: Config, wait_s: float, stop: StopSignals, console: Console) -> ChosenJob | None:
    """Return the requested job; None if a signal ended the wait."""

    def report(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    try:
        job = wait_for(request, config, wait_s, stop, report)
    except (TapeError, SeveralRunsError) as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    if job is None and stop.received is None:
        fail(with_reasons(f"{request} within {wait_s:g} s", os.environ, config), ExitCode.NOTHING_FOUND)
    if job is not None:
        _refuse_other_format(job.directory)
    return job


def _refuse_other_format(directory: Path) -> None:
    """End the command if another version has written all tapes: nothing could be shown, as if the ranks had ended."""
    index = index_of([directory])
    index.close()
    if index.refused and not index.runs:
        fail(index.refused[0], ExitCode.NOTHING_FOUND)


@contextlib.contextmanager
def _view(console: Console, directory: Path, plain: bool) -> Generator[View]:
    if plain or not can_redraw(console):
        yield PlainView(console)
        return
    with live_display(console) as live:
        yield LiveView(live, directory)


POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The job that the user asks for.

    Attributes:
        run: The first digits of the run's id; '' for any.
        run_dir: The job directory; None for any.
        base: The directory that contains job directories.
    """

    run: str
    run_dir: Path | None
    base: Path

    def __str__(self) -> str:
        target = f"run {self.run}" if self.run else "tape" if self.run_dir else "job with a live rank"
        return f"no {target} below {self.run_dir or self.base}"


@dataclass(frozen=True, slots=True)
class ChosenJob:
    """The job to watch.

    Attributes:
        directory: Its job directory.
        run_id: Id of the requested run; None for the run that began last.
    """

    directory: Path
    run_id: int | None = None


def wait_for(
    request: JobRequest, config: Config, timeout_s: float, stop: StopSignals, report: Callable[[str], None]
) -> ChosenJob | None:
    """Wait for the job; returns None after a timeout or a signal.

    Raises:
        TapeError: A directory belongs to another user.
        SeveralRunsError: More than one run matches.
    """
    deadline = time.monotonic() + timeout_s
    is_first_attempt = True
    while stop.received is None:
        job = _find_now(request, config)
        left_s = deadline - time.monotonic()
        if job is not None or left_s <= 0:
            return job
        if is_first_attempt:
            report(with_reasons(f"{request} yet; waiting for at most {timeout_s:g} s", os.environ, config))
            is_first_attempt = False
        stop.wait(min(POLL_S, left_s))
    return None


def _find_now(request: JobRequest, config: Config) -> ChosenJob | None:
    if request.run:
        return _find_run_now(request, config)
    if request.run_dir is None:
        live = jobs_by_newest_rank(tape_directory(config))
        directory = first_of_slurm_job(live, this_slurm_job()) or next(iter(live), None)
        return ChosenJob(directory) if directory is not None else None
    directory = job_directory(request.run_dir.parent, request.run_dir.name)
    return ChosenJob(directory) if tapes_in(directory) else None


def _find_run_now(request: JobRequest, config: Config) -> ChosenJob | None:
    index = whole_index(config, request.run_dir)
    try:
        run = select(index.runs, request.run)
        return ChosenJob(run.directory, run.run_id) if run is not None else None
    finally:
        index.close()
