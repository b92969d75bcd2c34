"""`otel-torchdist agent`."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.foreground import Foreground, wait_for_job
from otel_torchdist.agent.job import AgentError, Job
from otel_torchdist.agent.limits import Priority
from otel_torchdist.agent.node import NodeWatch
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.text import fail
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.description_file import job_in
from otel_torchdist.node.job.directory import base_directory
from otel_torchdist.node.job.slurm import this_slurm_job
from otel_torchdist.show.serving.scrape_target import withdraw_stale
from otel_torchdist.system.this_process.commands import StopSignals
from otel_torchdist.telemetry.export.outputs import outputs_from_environment

_LOG_FORMAT: Final = "%(asctime)s %(message)s"


def agent(
    run_dir: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            resolve_path=True,
            help="The directory of a running or finished job. "
            "Without it: the directory of this user's job in which a rank started last, inside a Slurm job of "
            "that job.",
        ),
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the first rank.")] = 60.0,
    keep: Annotated[
        float,
        typer.Option(
            min=0,
            help="Upper bound in seconds on staying after the last rank has ended: for restarts of failed ranks, "
            "and for a last scrape if metrics have been scraped before.",
        ),
    ] = 60.0,
    stay: Annotated[
        bool,
        typer.Option(
            "--stay",
            help="Stay until SIGHUP even if all ranks have ended, because a launcher may restart them. After SIGHUP, "
            "--keep applies; a second SIGHUP ends the agent.",
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Export everything on the tapes, even what an agent has already exported.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Run as a service: read every run on the node that has no other agent.",
        ),
    ] = False,
) -> None:
    """Start an agent by hand: as a node's service, beside ranks that do not start one, or for a job that has ended.

    The agent reads the tapes of a job on this node, exports spans, serves /metrics and watches for stalls. Ranks start
    an agent by themselves unless OTEL_PYTHON_TORCHDIST_READER is set to something else. All other settings are those of
    a training process: the OTEL_* variables. A signal ends the agent with exit code 0, after a last export.
    """
    logging.basicConfig(stream=sys.stdout, format=_LOG_FORMAT, datefmt="%H:%M:%S")
    logging.getLogger("otel_torchdist").setLevel(logging.INFO)
    config = Config.from_environment()
    if watch and (run_dir is not None or again or stay):
        raise typer.BadParameter(
            "it reads every run and stays, so it cannot be combined with --run-dir, --again or --stay.",
            param_hint="--watch",
        )
    with StopSignals() as stop:
        if watch:
            NodeWatch(Agent(config, outputs_from_environment, Priority()), _custom_base(config), keep).run(stop)
            return
        directory = _find(config, run_dir, wait, stop)
        if directory is None:
            return
        try:
            job = Job(directory, again)
        except AgentError as error:
            fail(str(error), ExitCode.NOTHING_FOUND)
        is_hung_up = stop.ignore_first_hangup() if stay else lambda: True
        outputs = partial(outputs_from_environment, job=job_in(directory))
        agent_of_job = Agent(config, outputs, Priority()).add(job)
        Foreground(agent_of_job, keep, stays=lambda: not is_hung_up()).run(stop)


def _custom_base(config: Config) -> Path | None:
    """Return the configured base directory; None for the default, which covers the jobs of all users."""
    return config.tape_dir if config.tape_dir != Config().tape_dir else None


def _find(config: Config, run_dir: Path | None, timeout_s: float, stop: StopSignals) -> Path | None:
    """Return the job directory; None if a signal ended the wait."""
    try:
        base = base_directory(config.tape_dir, config.tape_on_disk)
    except TapeError as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    withdraw_stale(base)
    slurm_job = this_slurm_job()
    directory = wait_for_job(base, run_dir, timeout_s, stop, slurm_job)
    if directory is None and stop.received is None:
        of_slurm = f" in Slurm job {slurm_job}" if slurm_job else ""
        where = f"{run_dir}: no tape" if run_dir else f"{base}: no job with a live rank{of_slurm}"
        fail(f"{where} within {timeout_s:g} s", ExitCode.NOTHING_FOUND)
    return directory
