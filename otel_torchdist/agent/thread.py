"""The reader in a thread of the training process.

It exports the tape of its own rank. The process of the job on this node that takes the lock also watches the other
tapes for stalls. A native call that holds the GIL stops this thread like any other.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from otel_torchdist import guard
from otel_torchdist.agent.actions.perform import Callback
from otel_torchdist.agent.actions.triggers import FindingActions, StallActions, supported_in_rank, suspended_among
from otel_torchdist.agent.notices import Notices
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.config import ActionKind, Config
from otel_torchdist.environment_variables import (
    OTEL_PYTHON_TORCHDIST_BUNDLES,
    OTEL_PYTHON_TORCHDIST_ON_FINDING,
    OTEL_PYTHON_TORCHDIST_ON_MACHINE,
    OTEL_PYTHON_TORCHDIST_ON_STALL,
)
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.node.job.tapes import ReaderLock
from otel_torchdist.show.live.feed import LiveFeed
from otel_torchdist.show.live.site import live_feed, live_site
from otel_torchdist.show.serving.metrics_page import MetricsServer
from otel_torchdist.sources.archive.writer import archive_of
from otel_torchdist.system.this_process.end import ProcessEnd, can_start_threads
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.writer import TapeWriter
from otel_torchdist.telemetry.export.outputs import Outputs
from otel_torchdist.telemetry.metrics.prometheus import TorchDistCollector

_logger = logging.getLogger("otel_torchdist")

STOP_S = 10.0
"""Longest time to wait for the thread when the process ends."""


class ReaderThread:
    """A thread that runs the reader. It starts with the first tape of this process."""

    def __init__(self, config: Config, outputs: Callable[[], Outputs], on_stall: Callback | None = None) -> None:
        """Prepare the thread; `follow` starts it.

        Args:
            config: The settings.
            outputs: Builds the exporters. Called on the thread, because that takes time.
            on_stall: Called for each stall; see `StallActions`.
        """
        on_stall_actions = supported_in_rank(config.on_stall, OTEL_PYTHON_TORCHDIST_ON_STALL)
        self._actions = StallActions(on_stall_actions, config.on_stall_grace, config.dump_dir, on_stall)
        on_finding = supported_in_rank(config.on_finding, OTEL_PYTHON_TORCHDIST_ON_FINDING)
        if any(action.kind is not ActionKind.LOG for action in config.on_machine):
            _logger.warning(
                "%s needs an agent, but here the tapes are read by a thread of the rank: ignored",
                OTEL_PYTHON_TORCHDIST_ON_MACHINE,
            )
        self._finding_actions = FindingActions(on_finding, config.dump_dir)
        if config.bundles is not None:
            _logger.warning(
                "%s needs an agent, but here the tapes are read by a thread of the rank: no bundles are written",
                OTEL_PYTHON_TORCHDIST_BUNDLES,
            )
        self._config = config
        self._outputs = outputs
        self._new_writers: list[TapeWriter] = []
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._reader_lock: ReaderLock | None = None
        self._process = os.getpid()
        self._end = ProcessEnd(self.stop)

    def follow(self, tape: TapeWriter) -> None:
        """Read a tape that this process has just created.

        Call this before capture registers its own `ProcessEnd`: these run in reverse order, so the tape is finished
        before it is read for the last time.
        """
        if os.getpid() != self._process:  # this rank was forked from a rank: the thread did not survive the fork
            self._process = os.getpid()
            self._thread = self._reader_lock = None
            self._wake = threading.Event()
        self._end.arm()
        self._new_writers.append(tape)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="otel-torchdist-reader", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Export the remaining records and end the thread, within `STOP_S`."""
        self._end.disarm()
        self._stopping = True
        self._wake.set()
        thread = self._thread
        if thread is not None and os.getpid() == self._process:
            thread.join(STOP_S)

    def _run(self) -> None:
        with guard.guarded("reader"):
            watch = StallWatch(StallRules.from_config(self._config))
            archive, feed = archive_of(self._config), live_feed(self._config)
            notices = Notices(lambda: reader.tapes, is_rank=True) if self._config.announce else None
            outputs, budget = self._outputs(), self._config.span_budget
            docs_url = self._config.docs_url
            reader = Reader(outputs, budget, watch, archive=archive, live=feed, announcer=notices, docs_url=docs_url)
            server = self._serve(reader, feed)
            try:
                while not self._stopping:
                    self._turn(reader)
                    if server is not None:
                        server.start()  # no effect if it serves already
                    self._wake.wait(reader.watch.next_check_s)
                    self._wake.clear()
                self._follow_new_tapes(reader)
            finally:
                reader.close(watches=self._reader_lock is not None and self._reader_lock.is_won)
                if server is not None:
                    server.stop()
                if self._reader_lock is not None:
                    self._reader_lock.resign()

    def _turn(self, reader: Reader) -> None:
        with guard.guarded("reader"):
            self._follow_new_tapes(reader)
            reader_lock = self._reader_lock
            if reader_lock is None:
                return
            if reader_lock.is_won:
                for tape in reader_lock.tapes.new(only_alive=True):
                    reader.follow(tape, exported=False)
            reader.turn(watches=reader_lock.is_won)
            ongoing = reader.watch.ongoing
            self._actions.start_due(ongoing, reader.tapes, suspended_among(ongoing))
            self._finding_actions.start(reader.take_findings(), reader.tapes)

    def _follow_new_tapes(self, reader: Reader) -> None:
        while self._new_writers:
            writer = self._new_writers.pop(0)
            writer.claim_export()
            reader.follow(TapeReader.of_writer(writer))
            directory = writer.path.parent
            if self._reader_lock is None or self._reader_lock.directory != directory:
                if self._reader_lock is not None:
                    self._reader_lock.resign()
                self._reader_lock = ReaderLock(directory)
            self._reader_lock.tapes.exclude(writer.path)

    def _serve(self, reader: Reader, feed: LiveFeed | None) -> MetricsServer | None:
        if not reader.serves_metrics or not can_start_threads():
            return None
        registry = CollectorRegistry()
        registry.register(TorchDistCollector(reader.metrics.snapshot))
        host, port, site = self._config.prometheus_host, self._config.prometheus_port, live_site(self._config, feed)
        server = MetricsServer(host, port, registry, site=site)
        server.start()
        return server
