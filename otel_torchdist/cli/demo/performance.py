"""The demo itself: starts the job, reads its tapes while it trains, shows what is seen, and leaves nothing behind."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Final

from otel_torchdist.agent.job import Job as ReadJob
from otel_torchdist.agent.process import Agent
from otel_torchdist.agent.stop_signals import StopSignals
from otel_torchdist.cli.demo.findings import Findings
from otel_torchdist.cli.demo.job import Job
from otel_torchdist.cli.demo.options import DemoOptions
from otel_torchdist.cli.demo.outputs import demo_outputs
from otel_torchdist.cli.demo.scrape import scrape
from otel_torchdist.cli.demo.scratch import Scratch
from otel_torchdist.cli.demo.view import Picture, View
from otel_torchdist.cli.rank_rows import Doing, RankRow, rank_rows
from otel_torchdist.config import Config
from otel_torchdist.tape.directory import job_directories

TURN_S: Final = 0.1
"""Time between two pictures: the ages in the table should run."""

_logger = logging.getLogger("otel_torchdist")


class Performance:
    """One run of the demo.

    Attributes:
        findings: What was found.
        training: What the script has printed last.
        dropped: Spans that could not be exported, once it is over.
        errors: What job and ranks wrote to stderr, once it is over.
        exit_code: torchrun's; None when it was stopped.
    """

    def __init__(self, options: DemoOptions, config: Config, view: View, stop: StopSignals) -> None:
        """Prepare.

        Args:
            options: What was asked for.
            config: Where `/metrics` is served; the threshold of `options` goes before its own.
            view: Where everything is shown.
            stop: Ends it early.
        """
        self._options = options
        self._config = config
        self._view = view
        self._stop = stop
        self._agent: Agent | None = None
        self.findings = Findings(options, view, self._scrape)
        self.training = ""
        self.dropped = 0
        self.errors = ""
        self.exit_code: int | None = None

    def run(self, places: Scratch) -> None:
        """Run until the training is over, or until a signal comes. No process of the job is left then.

        Raises:
            AgentError: The tapes cannot be read.
            OSError: Nothing can be shown, for the terminal is gone.
        """
        job = Job(self._options, places)
        handler = _ViewHandler(self._view.say)
        _logger.addHandler(handler)
        try:
            while self._stop.received is None and not self._is_over(job):
                self._turn(job, places)
                self._stop.wait(TURN_S)
            self.exit_code = job.processes.exit_code
        finally:
            job.processes.stop()
            self.errors = job.errors()
            if self._agent is not None:
                self._agent.close()
                self.dropped = self._agent.reader.spans_dropped()
            _logger.removeHandler(handler)

    def _is_over(self, job: Job) -> bool:
        return job.processes.exit_code is not None and (self._agent is None or not self._agent.reader.any_running)

    def _turn(self, job: Job, places: Scratch) -> None:
        for line in job.new_lines():
            self.training = line
            self._view.training_says(line)
        if self._agent is None:
            self._agent = self._open(places)
        if self._agent is not None:
            self._agent.turn()
            self.findings.take(self._agent.reader.incidents)
        self._view.show(Picture(self._rows(), self._options.steps, self.training))

    def _open(self, places: Scratch) -> Agent | None:
        """An agent for the job, as soon as the first rank has begun its tape."""
        for directory in job_directories(places.tapes):
            job = ReadJob(directory)
            agent = Agent(self._config, functools.partial(demo_outputs, self._options)).add(job)
            agent.turn()
            if agent.metrics_port is not None:
                self._view.say(f"/metrics: http://{self._config.prometheus_host}:{agent.metrics_port}/metrics")
            return agent
        return None

    def _rows(self) -> list[RankRow]:
        known: list[RankRow] = []
        if self._agent is not None:
            verdict = self.findings.verdict
            known = rank_rows(self._agent.reader.tapes, verdict, self._options.threshold_s, time.monotonic_ns())
        rows = {rank: RankRow(rank, Doing.STARTING) for rank in range(self._options.ranks)}
        return list((rows | {row.rank: row for row in known}).values())

    def _scrape(self, operation: str) -> list[str]:
        if self._agent is None or self._agent.metrics_port is None:
            return []
        return scrape(self._config.prometheus_host, self._agent.metrics_port, operation)


class _ViewHandler(logging.Handler):
    """Shows what we log; stalls are shown by the demo itself."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say
        self.addFilter(lambda record: record.name == _logger.name)

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())
