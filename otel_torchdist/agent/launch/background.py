"""The main program of an agent started by a rank: detached, in its own session, with a log file."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from otel_torchdist import guard
from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.foreground import Foreground
from otel_torchdist.agent.job import AgentError, Job
from otel_torchdist.agent.limits import Priority
from otel_torchdist.agent.log_relay import LOG_NAME
from otel_torchdist.config import Config
from otel_torchdist.node.job.description_file import job_in
from otel_torchdist.node.job.leftovers import clean_up
from otel_torchdist.show.serving.scrape_target import withdraw_stale
from otel_torchdist.system.this_process.commands import StopSignals
from otel_torchdist.system.this_process.stderr_logging import LevelFormatter
from otel_torchdist.telemetry.export.outputs import outputs_from_environment

LOG_BYTES: Final = 512 * 1024
LINE: Final = "%(asctime)s %(levelname)s %(message)s"


def main(directory: str) -> None:
    """Read a job directory until its ranks are gone."""
    job_directory = Path(directory)
    config = Config.from_environment()  # before logging starts: the ranks have already warned of invalid values
    _log_to_file(job_directory / LOG_NAME)
    _drop_cpu_affinity()
    withdraw_stale(job_directory.parent)
    with StopSignals() as stop, guard.guarded("the agent"):
        try:
            job = Job(job_directory)
        except AgentError as error:
            logging.getLogger("otel_torchdist").info("%s", error)
            return
        outputs = partial(outputs_from_environment, job=job_in(job_directory))
        agent = Agent(config, outputs, Priority(lowers_session=True), is_relayed=True).add(job)
        Foreground(agent, config.agent_linger, expects_scraper=True).run(stop)
        clean_up(job_directory.parent, config.keep_runs, config.keep_bytes)


def _log_to_file(path: Path) -> None:
    """Log to two rotating files of at most `LOG_BYTES` each; standard output and error go to the first too."""
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(LevelFormatter(LINE))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("otel_torchdist").setLevel(logging.INFO)
    logging.captureWarnings(True)
    with path.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())


def _drop_cpu_affinity() -> None:
    """Drop the inherited CPU affinity: a rank may be pinned to a few cores that it needs for itself."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
