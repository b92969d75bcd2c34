"""The agent: reads all tapes of its job directories, serves one `/metrics` endpoint and runs one stall watch."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from otel_torchdist import guard
from otel_torchdist.agent.actions.machine_actions import MachineActions
from otel_torchdist.agent.actions.machine_advice import Incidents
from otel_torchdist.agent.actions.triggers import FindingActions, StallActions, suspended_among
from otel_torchdist.agent.bundles import keeper_of
from otel_torchdist.agent.exchange.peers import PeerExchanges
from otel_torchdist.agent.job import Job, Neighbors
from otel_torchdist.agent.limits import MemoryShares, Priority, UsedDescriptors
from otel_torchdist.agent.notices import Notices
from otel_torchdist.agent.path_watch.child import NodeCalls
from otel_torchdist.agent.path_watch.own_runs import own_tapes, runs_to_watch
from otel_torchdist.agent.path_watch.steps import StepRange
from otel_torchdist.agent.path_watch.watch import ANSWER_S, PathWatch, StepsResponder
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.agent.results import AgentsVerdicts, FindingsLog
from otel_torchdist.config import Config
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.room import Cleaning
from otel_torchdist.node.machine.watch import MachineWatch
from otel_torchdist.node.processes.death_watch import DeathWatch
from otel_torchdist.show.live.site import live_feed, live_site, page_address
from otel_torchdist.show.serving.metrics_page import MetricsServer
from otel_torchdist.show.serving.scrape_target import ScrapeTarget
from otel_torchdist.sources.archive.writer import archive_of
from otel_torchdist.telemetry.export.outputs import Outputs
from otel_torchdist.telemetry.export.sinks import HeldSink
from otel_torchdist.telemetry.metrics.prometheus import TorchDistCollector
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot

_logger = logging.getLogger("otel_torchdist")

SAVE_S: Final = 1.0
"""Seconds between checkpoints while no spans are sent."""
BUNDLES_S: Final = 2.0
"""Longest time in seconds to wait for the last bundles, after everything else has been flushed."""
WARNING_S: Final = 600.0
"""Minimum seconds between warnings about one user's tapes, however many job directories the user creates."""
TOO_LARGE: Final = (
    "%s is no longer read: the tapes of user %d take about %d MiB of this process's memory; the limit for one user is "
    "%d MiB. All ranks of that job are left out; an agent of that user can read them (`otel-torchdist agent "
    "--run-dir %s`). If more jobs of this user are left out, that is not logged for ten minutes"
)


class Agent:
    """Reader of any number of job directories. Not thread-safe.

    Attributes:
        scrapes: Number of `/metrics` requests so far.
        given_up: Job directories that are no longer read, and the monotonic time in seconds at which each was given
            up.
    """

    def __init__(
        self,
        config: Config,
        outputs: Callable[[], Outputs],
        priority: Priority | None = None,
        is_relayed: bool = False,
        shares: MemoryShares | None = None,
    ) -> None:
        """Set up an agent that reads no job directory yet.

        Args:
            config: The settings.
            outputs: Builds the exporters.
            priority: Scheduling priority of this process; None to leave it unchanged.
            is_relayed: Whether ranks relay the warnings of this process; see `LogRelay`.
            shares: Memory limit per user; see `Reader`.
        """
        self.scrapes = 0
        self.given_up: dict[Path, float] = {}
        self._allowance = UsedDescriptors()
        self._warned_at: dict[int, float] = {}
        self._config = config
        self._priority = priority
        self._jobs: dict[Path, Job] = {}
        self._own_directories: set[Path] = set()
        self._neighbors = Neighbors()
        self._targets: dict[Path, ScrapeTarget] = {}
        self._steps_responder = StepsResponder()
        self._peers = PeerExchanges(self._steps_responder.answer)
        self._paths = PathWatch(self._ask_for_steps) if config.critical_path else None
        folder = config.machine_incidents
        incidents = Incidents(folder, config.machine_incident_days) if folder is not None else None
        self._actions = StallActions(
            config.on_stall,
            config.on_stall_grace,
            config.dump_dir,
            rescue_timeout_s=config.rescue_timeout,
            incidents=incidents,
        )
        self._machine_actions = MachineActions(config.on_machine, config.dump_dir, incidents)
        self._bundles = keeper_of(config)
        self._finding_actions = FindingActions(config.on_finding, config.dump_dir)
        self._verdicts = AgentsVerdicts()
        self._findings = FindingsLog()
        self._cleaning = Cleaning(config.keep_runs, config.keep_bytes)
        self._deaths = DeathWatch()
        unwrapped = outputs()
        self._sink = HeldSink(unwrapped.sink, self._save)
        self._saved_at = time.monotonic()
        self._machine = _machine_watch() if config.machine else None
        self._watch = StallWatch(StallRules.from_config(config), self._peers, self._deaths, self._machine)
        wrapped = dataclasses.replace(unwrapped, sink=self._sink)
        self._feed = live_feed(config)
        archive = archive_of(config)
        self._notices = Notices(lambda: self.reader.tapes, is_relayed=is_relayed) if config.announce else None
        self.reader = Reader(
            wrapped,
            config.span_budget,
            self._watch,
            self._deaths,
            archive,
            self._feed,
            self._machine,
            self._notices,
            shares,
            config.docs_url,
        )
        self._server: MetricsServer | None = None

    def add(self, job: Job) -> Agent:
        """Read another job directory, from the next turn on; return this agent."""
        self._jobs[job.directory] = job
        if job.owner == os.geteuid():  # other users' data may be forged: it is read, but triggers no action
            self._own_directories.add(job.directory)
        self._count()
        return self

    def has_room_for_job_of(self, user: int) -> bool:
        """Return whether there are enough file descriptors for another job directory of a user."""
        return self._allowance.has_room_for_directory(user)

    def drop(self, directory: Path) -> None:
        """Stop reading a job directory whose ranks have all ended, so that another process may read it."""
        self._save()
        self._leave(directory)

    def _leave(self, directory: Path) -> None:
        job = self._jobs.pop(directory)
        self._own_directories.discard(directory)
        for nonce in job.followed:
            self.reader.forget(nonce)
        self.reader.leave(directory)
        job.close()
        target = self._targets.pop(directory, None)
        if target is not None:
            target.withdraw()

    @property
    def directories(self) -> list[Path]:
        """Job directories being read."""
        return list(self._jobs)

    def is_read(self, identity: tuple[int, int]) -> bool:
        """Return whether a job directory is being read, under this or another path; see `Job.identity`."""
        return any(job.identity == identity for job in self._jobs.values())

    def is_live(self, directory: Path) -> bool:
        """Return whether a rank of a job is alive. Asks only open tapes, so it needs no file descriptor."""
        return any(tape.is_alive() for tape in self.reader.tapes if tape.path.parent == directory)

    @property
    def is_announcing(self) -> bool:
        """Whether a verdict still has to be written to a job's standard error."""
        return self._notices is not None and self._notices.is_announcing

    @property
    def metrics_port(self) -> int | None:
        """TCP port of `/metrics`; None if it is not served."""
        return self._server.port if self._server is not None else None

    def turn(self) -> None:
        """Start reading new tapes, and read all new records. `/metrics` is served only after the first turn."""
        with guard.guarded("agent"):
            self._follow_new_tapes()
            self._neighbors.update(self.reader, self._own_directories, os.geteuid())
            if self._config.exchange:
                self._peers.search(sorted(self._own_directories))
            self.reader.turn()
            self._drop_failed_jobs()
            self._drop_largest_jobs()
            ongoing, tapes = self.reader.watch.ongoing, self.reader.tapes
            own_tapes = [tape for tape in tapes if tape.path.parent in self._own_directories]
            self._verdicts.update(ongoing, own_tapes)
            self._watch_paths()
            self._actions.start_due(ongoing, own_tapes, suspended_among(ongoing))
            self._machine_actions.start(self.reader.incidents, own_tapes)
            findings = self.reader.take_findings()
            self._findings.update(findings, own_tapes)
            self._finding_actions.start(findings, own_tapes)
            self._bundles.update(self.reader, own_tapes)
            if not self._sink.release() and time.monotonic() - self._saved_at >= SAVE_S:
                self._save()
            if self.reader.serves_metrics:
                self._serve()
            if self._priority is not None:
                self._priority.update(self._watch.is_urgent)

    def _watch_paths(self) -> None:
        if self._paths is None:
            return
        paths = {tape.identity.nonce: tape.path for tape in self.reader.tapes}
        runs = self.reader.watch.seen
        tapes = own_tapes(runs, paths)
        self._steps_responder.update(tapes)
        self._paths.update(runs_to_watch(runs, tapes))
        self.reader.report(self._paths.events())

    def _ask_for_steps(self, run: int, steps: StepRange) -> list[NodeCalls]:
        return [NodeCalls(*answer) for answer in self._peers.ask_for_steps(run, steps.to_bytes(), ANSWER_S)]

    def _follow_new_tapes(self) -> None:
        open_tapes = self._count()
        for job in list(self._jobs.values()):
            # The descriptors of a directory's first tape are reserved; see `UsedDescriptors.count`.
            most = self._allowance.room_for(job.owner) + (not open_tapes[job.directory])
            open_before, followed_before = len(self.reader.tapes), len(job.followed)
            try:
                job.follow_new_tapes(self.reader, most)
                if job.directory in self._own_directories:  # other users' directories are never cleaned
                    self._cleaning.tapes_added(job.directory.parent, len(job.followed) - followed_before)
            except Exception as error:  # one bad job must not affect the others
                self._give_up(job.directory, error)
            if job.refusal and job.directory in self._jobs:
                self._leave_to_another_version(job)
            if len(self.reader.tapes) != open_before:
                open_tapes = self._count()

    def _leave_to_another_version(self, job: Job) -> None:
        """Release a job directory whose ranks are of another version, so that the agent that they start can read it."""
        _logger.warning(
            "%s is left to an agent of the ranks' version; the ranks start one, except with "
            "OTEL_PYTHON_TORCHDIST_READER=none",
            job.directory,
        )
        self.given_up[job.directory] = time.monotonic()
        self._leave(job.directory)

    def _count(self) -> Counter[Path]:
        """Count open descriptors by user; return the number of open tapes of each job directory."""
        open_tapes = Counter(tape.path.parent for tape in self.reader.tapes)
        self._allowance.count((job.owner, open_tapes[directory]) for directory, job in self._jobs.items())
        return open_tapes

    def _drop_failed_jobs(self) -> None:
        failed = self.reader.failed
        for job in list(self._jobs.values()):
            errors = [failed[nonce] for nonce in job.followed & failed.keys()]
            if errors and job.directory not in self._own_directories:
                self._give_up(job.directory, errors[0])
            for error in errors if job.directory in self._own_directories else ():
                guard.report("the check of a run", error)

    def _drop_largest_jobs(self) -> None:
        """Stop reading the largest job of each user whose tapes exceed the memory limit."""
        shares = self.reader.shares
        for user in shares.exceeded():
            used_bytes = shares.of_user(user)
            jobs = {job.directory: shares.of_tapes(job.followed) for job in self._jobs.values() if job.owner == user}
            largest = max(jobs, key=lambda directory: jobs[directory])
            self.given_up[largest] = time.monotonic()
            self.drop(largest)
            if time.monotonic() - self._warned_at.get(user, float("-inf")) >= WARNING_S:
                self._warned_at[user] = time.monotonic()
                _logger.warning(TOO_LARGE, largest, user, used_bytes >> 20, shares.most >> 20, largest)

    def _give_up(self, directory: Path, error: Exception) -> None:
        """Stop reading another user's job with unusable files.

        For a job of this process's user only report the error: its remaining tapes are worth reading.
        """
        if directory in self._own_directories:
            guard.report("agent", error)
            return
        why = readable(f"{type(error).__name__}: {error}", 200)
        _logger.warning("%s is no longer read, because its contents are not usable: %s", directory, why)
        self.given_up[directory] = time.monotonic()
        self._leave(directory)

    def close(self) -> None:
        """Read the remaining records, flush, and release the directories; takes at most a little over 5 s."""
        self.leave_evidence()
        self.reader.close()
        self._deaths.stop()
        if self._paths is not None:
            self._paths.stop()
        if self._machine is not None:
            self._machine.stop()
        self._peers.stop()
        self._save()
        if self._server is not None:
            self._server.stop()
        for target in self._targets.values():
            target.withdraw()
        self._bundles.close(BUNDLES_S)
        for job in self._jobs.values():
            job.close()

    def leave_evidence(self) -> None:
        """Start writing the last bundles, without waiting for them."""
        self._bundles.leave(self.reader, self._own_directories)

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        for job in list(self._jobs.values()):
            try:
                job.save(self.reader)
            except Exception as error:
                self._give_up(job.directory, error)

    def _serve(self) -> None:
        """Start the `/metrics` server as soon as possible, and publish its address to the scrapers of every job."""
        if self._server is None:
            # Without a configured port, another user's job directory must not choose the port we listen on.
            is_port_configured = bool(self._config.prometheus_port)
            trusted = [
                job for job in self._jobs.values() if is_port_configured or job.directory in self._own_directories
            ]
            last_ports = (ScrapeTarget(job.directory, job.owner).last_port() for job in trusted)
            registry = CollectorRegistry()
            registry.register(TorchDistCollector(self._snapshot))
            host, port = self._config.prometheus_host, self._config.prometheus_port
            last_port = next(filter(None, last_ports), None)
            self._server = MetricsServer(host, port, registry, last_port, live_site(self._config, self._feed))
        is_new = self._server.port is None
        if not self._server.start() or self._server.port is None:
            return
        if is_new:
            self._peers.announce_page(page_address(self._config, self._server.port))
        for directory in self._jobs.keys() - self._targets.keys():
            self._targets[directory] = ScrapeTarget(directory, self._jobs[directory].owner)
            self._targets[directory].publish(self._config.prometheus_host, self._server.port)

    def _snapshot(self) -> NodeSnapshot:
        snapshot = self.reader.metrics.snapshot()
        self.scrapes += 1
        return snapshot


def _machine_watch() -> MachineWatch | None:
    """Start the machine watch; return None if no file descriptor or thread is left for it."""
    try:
        return MachineWatch().start()
    except (OSError, RuntimeError) as error:
        _logger.warning("the machine is not read: %s", error)
        return None
