"""Runs the demo: starts the job, watches it from outside as `otel-torchdist watch` does, and reports."""

from __future__ import annotations

import contextlib
import http.client
import logging
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from otel_torchdist.agent.log_relay import LOG_NAME, LogTail, pass_on
from otel_torchdist.cli.demo.findings import DemoFindings
from otel_torchdist.cli.demo.job import DemoJob as Job
from otel_torchdist.cli.demo.job import Scratch, endpoint_in
from otel_torchdist.cli.demo.options import DemoOptions, training_continues
from otel_torchdist.cli.output.terminal import ReportHandler
from otel_torchdist.cli.watch.passive import Observation, PassiveWatch, Rates
from otel_torchdist.cli.watch.views import Screen, Training, View, WatchRow, screen_of
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.node.job.directory import READER_LOCK_NAME, job_directories
from otel_torchdist.show.live.ranks import RankRow, starting
from otel_torchdist.show.serving.scrape_target import ScrapeTarget
from otel_torchdist.system.files.locks import is_file_locked
from otel_torchdist.system.this_process.commands import StopSignals
from otel_torchdist.telemetry.metrics.definitions.operations import LAST_STARTED_SEQUENCE, OLDEST_AGE
from otel_torchdist.telemetry.metrics.definitions.stalls import STALL_INFO, STALLED

_SCRAPE_TIMEOUT_S: Final = 2.0
_MAX_SERIES: Final = 4
"""Upper bound on the series shown of each metric."""
_SHOWN_METRICS: Final = (STALLED.name, STALL_INFO.name, OLDEST_AGE.name, LAST_STARTED_SEQUENCE.name)


def scrape(target: str, operation: str) -> list[str]:
    """Return the lines of `/metrics` that a stall of `operation` changes, shortened; empty without a response."""
    connection = http.client.HTTPConnection(target, timeout=_SCRAPE_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    except (OSError, http.client.HTTPException):
        return []
    finally:
        connection.close()
    label_prefix = 'operation="'
    wanted = sorted(line for line in lines if label_prefix not in line or f'{label_prefix}{operation}"' in line)
    sample: list[str] = []
    for name in _SHOWN_METRICS:
        sample += [line for line in wanted if line.startswith(f"{name}{{")][:_MAX_SERIES]
    return sample


_DROPPED: Final = re.compile(r"; (\d+) spans could not be exported$")
_STALL_LINE: Final = re.compile(r" (WARNING|ERROR) stall( over)?: ")
"""Matches log lines about stalls, which this process detects and reports itself."""
_FINDING_PREFIX: Final = " WARNING finding: "
_FINDING: Final = re.compile(r"(.*) (\(run [^()]+\))$")
"""Matches a finding other than a stall, with its run and trace."""

_logger = logging.getLogger("otel_torchdist")


class FollowedAgent:
    """Follows the agent of one job directory.

    Attributes:
        target: Host and port of `/metrics`; '' until it is served.
        dropped: Number of spans that could not be exported, once the agent has ended.
    """

    def __init__(self, directory: Path, has_page: bool, report_finding: Callable[[str, str], None]) -> None:
        """Follow an agent.

        Args:
            directory: Its job directory, which need not exist yet.
            has_page: Whether the agent serves a live page.
            report_finding: Called for each finding in the agent's log that is not a stall, with its run and trace.
        """
        self.target = ""
        self._has_page = has_page
        self._report_finding = report_finding
        self.dropped = 0
        self._directory = directory
        self._tail = LogTail(directory / LOG_NAME)

    def follow(self) -> None:
        """Report new warnings in the agent's log, and look up the address of `/metrics`."""
        if not self.target:
            self.target = ScrapeTarget(self._directory).last_target()
            if self.target and self._has_page:
                _logger.info("live page: http://%s/, and /metrics there", self.target)
            elif self.target:
                _logger.info("/metrics: http://%s/metrics", self.target)
        for line in self._tail.new_lines():
            if (dropped := _DROPPED.search(line)) is not None:
                self.dropped = int(dropped[1])
            if (finding := _FINDING.match(line.partition(_FINDING_PREFIX)[2])) is not None:
                self._report_finding(finding[1], finding[2])
            elif not _STALL_LINE.search(line):
                pass_on(line)

    @property
    def is_running(self) -> bool:
        """Whether an agent reads the tapes."""
        try:
            return is_file_locked(self._directory / READER_LOCK_NAME)
        except OSError:
            return False


POLL_S: Final = 0.1
AGENT_END_S: Final = 15.0
"""Time for the agent to export its remaining data."""
VERDICT_S: Final = 3.0
"""Time for the verdict on a death after the agent has ended. The verdict depends on the fate of the other ranks."""
JOB_END_S: Final = 5.0
"""Time for torchrun to end after a request."""


class DemoRun:
    """One run of the demo.

    Attributes:
        findings: Verdicts and findings so far.
        training: Last line that the script printed.
        endpoint: Receiver of spans in addition to the file; '' for none.
        dropped: Number of spans that could not be exported, once the run is over.
        errors: The end of the stderr of torchrun and the ranks, once the run is over.
        exit_code: torchrun's exit code; None if it was stopped.
    """

    def __init__(self, options: DemoOptions, view: View, stop: StopSignals, has_page: bool = False) -> None:
        """Set up a run without starting the job.

        Args:
            options: The options of the demo.
            view: Shows reports and screens.
            stop: Ends the run early.
            has_page: Whether the agent serves a live page.
        """
        self._options = options
        self._has_page = has_page
        self._view = view
        self._stop = stop
        self._watch: PassiveWatch | None = None
        self._agent: FollowedAgent | None = None
        self._last_observation: Observation | None = None
        self.findings = DemoFindings(options, view, self._scrape)
        self.training = ""
        self.endpoint = ""
        self.dropped = 0
        self.errors = ""
        self.exit_code: int | None = None

    def run(self, directories: Scratch) -> None:
        """Run until the training is over or a signal arrives, and end all processes of the job.

        Raises:
            OSError: The terminal is gone, so nothing can be shown.
        """
        job = Job(self._options, directories)
        self.endpoint = endpoint_in(job.environment)
        handler = ReportHandler(self._view.report, logging.INFO)
        handler.addFilter(lambda record: record.name == _logger.name)  # stalls are shown by the demo itself
        _logger.addHandler(handler)
        with contextlib.ExitStack() as at_end:
            at_end.callback(_logger.removeHandler, handler)
            at_end.callback(self._close, job)
            while self._stop.received is None and job.processes.exit_code is None:
                rows = self._update(job, directories)
                if is_hopeless(self._options, rows):
                    length = f"{self._options.block_s:g} s"
                    self._view.report(f"The training has hung for {length}: torchrun is asked to end.")
                    self._end_job(job, directories)
                    break
                self._stop.wait(POLL_S)
            self.exit_code = job.processes.exit_code
            self._await_agent(job, directories)
            self._await_verdict(job, directories)

    def _end_job(self, job: Job, directories: Scratch) -> None:
        """Make torchrun end its ranks; `_close` ends all other processes."""
        self.findings.is_ending = True
        job.processes.ask_to_end()
        self._update_until(lambda: job.processes.exit_code is not None, job, directories, JOB_END_S)

    def _close(self, job: Job) -> None:
        job.processes.stop()
        self.errors = job.errors()
        if self._watch is not None:
            self._watch.close()

    def _await_agent(self, job: Job, directories: Scratch) -> None:
        """Wait until the agent has read the tapes to their ends and exported everything.

        After a short training the agent may still be starting. Until it takes its lock, it only shows as an orphan.
        """

        def is_gone() -> bool:
            return (self._agent is None or not self._agent.is_running) and not job.processes.has_orphans

        self._update(job, directories)
        self._update_until(is_gone, job, directories, AGENT_END_S)
        if self._agent is not None:
            self._agent.follow()
            self.dropped = self._agent.dropped

    def _await_verdict(self, job: Job, directories: Scratch) -> None:
        """Wait for the verdict on a failed training, which this process gives independently of the agent."""
        if self.exit_code and self._watch is not None and not self.findings.is_ending:
            self._update_until(lambda: self.findings.expected_verdict is not None, job, directories, VERDICT_S)

    def _update_until(self, is_done: Callable[[], bool], job: Job, directories: Scratch, timeout_s: float) -> None:
        """Update the view until a condition holds, the time is up or a signal has arrived."""
        deadline = time.monotonic() + timeout_s
        while self._stop.received is None and not is_done() and time.monotonic() < deadline:
            self._update(job, directories)
            self._stop.wait(POLL_S)

    def _update(self, job: Job, directories: Scratch) -> list[RankRow]:
        """Update the view once, and return the state of each rank."""
        lines = list(job.new_lines())
        self.training = lines[-1] if lines else self.training
        if self._watch is None:
            self._start_watching(directories)
        if self._agent is not None:
            self._agent.follow()
        observation = self._watch.observe() if self._watch is not None else None
        if observation is not None:
            self._last_observation = observation
            self.findings.process(observation.events)
        screen = self._screen(Training(self._options.steps, self.training, lines))
        self._view.show(screen)
        return [shown.row for shown in screen.rows]

    def _start_watching(self, directories: Scratch) -> None:
        """Start watching the job as soon as the first rank has created its tape."""
        for directory in job_directories(directories.tapes):
            self._watch = PassiveWatch(directory, StallRules(round(self._options.threshold_s * 1e9)))
            self._agent = FollowedAgent(directory, self._has_page, self.findings.report_finding)

    def _screen(self, training: Training) -> Screen:
        """Return the screen. Ranks without a tape are shown as starting."""
        options, findings = self._options, self.findings
        rows = {rank: WatchRow(starting(rank), Rates(0.0, 0.0), 0.0) for rank in range(options.ranks)}
        if self._last_observation is not None:
            screen = screen_of(self._last_observation, findings.verdict, findings.alarm, options.threshold_s)
            rows |= {shown.row.rank: shown for shown in screen.rows}
        return Screen("", options.ranks, list(rows.values()), findings.alarm, training)

    def _scrape(self, operation: str) -> list[str]:
        return scrape(self._agent.target, operation) if self._agent is not None and self._agent.target else []


def is_hopeless(options: DemoOptions, rows: Sequence[RankRow]) -> bool:
    """Return whether ranks have waited for as long as a permanent fault may last.

    Waits for ranks that are still loading, before the first step, do not count. If ranks end, torchrun ends the others.
    """
    if training_continues(options.fault) or not rows or not all(row.step for row in rows):
        return False
    return max((row.age_s for row in rows if row.age_s is not None), default=0.0) >= options.block_s
