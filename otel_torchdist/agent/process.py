"""The reader at home in a process of its own: all tapes of one job directory, one `/metrics`, one look for stalls."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from otel_torchdist import _guard
from otel_torchdist.agent.lives import run_of
from otel_torchdist.agent.reader import Reader
from otel_torchdist.agent.thread import Election
from otel_torchdist.config import Config
from otel_torchdist.tape.reader import TapeReader
from otel_torchdist.telemetry.metric_pictures import NodePicture
from otel_torchdist.telemetry.metrics_server import MetricsServer
from otel_torchdist.telemetry.outputs import Outputs
from otel_torchdist.telemetry.prometheus import TorchDistCollector


class AgentError(Exception):
    """The tapes of a job directory cannot be read here; the message says which and why."""


class Agent:
    """Reads one job directory until it is closed. Not thread-safe.

    Attributes:
        directory: The job directory.
        reader: What reads its tapes.
        scrapes: How often `/metrics` was asked for.
    """

    def __init__(self, directory: Path, config: Config, outputs: Callable[[], Outputs]) -> None:
        """Begin to read.

        Args:
            directory: The job directory.
            config: Threshold, span budget and where `/metrics` is served.
            outputs: Builds what the agent writes to; called once it is sure that nobody else reads here.

        Raises:
            AgentError: Another process reads these tapes, or the directory cannot be used.
        """
        self.directory = directory
        self.scrapes = 0
        self._election = _take(directory)
        self._is_first_turn = True
        self.reader = Reader(outputs(), config.stall_timeout, config.span_budget)
        self._server = self._serve(config)

    @property
    def metrics_port(self) -> int | None:
        """The port of `/metrics`; None where it is not served."""
        return self._server.port if self._server is not None else None

    def turn(self) -> None:
        """Take up new tapes, and read everything that is new."""
        with _guard.guard("agent"):
            found = self._election.tapes.new(only_alive=False)
            for tape in _of_runs_that_live(found) if self._is_first_turn else found:
                self.reader.follow(tape)
            self._is_first_turn = False
            self.reader.turn()

    def close(self) -> None:
        """Read what is left, flush, and leave the directory to others; takes little more than five seconds."""
        self.reader.close()
        if self._server is not None:
            self._server.stop()
        self._election.resign()

    def _serve(self, config: Config) -> MetricsServer | None:
        if not self.reader.serves_metrics:
            return None
        registry = CollectorRegistry()
        registry.register(TorchDistCollector(self._picture))
        server = MetricsServer(config.prometheus_host, config.prometheus_port, registry)
        return server if server.start() else None

    def _picture(self) -> NodePicture:
        picture = self.reader.metrics.picture()
        self.scrapes += 1
        return picture


def _take(directory: Path) -> Election:
    """Become the one that reads a directory.

    Raises:
        AgentError: That is somebody else, or there is no such directory, or it is not ours to write to.
    """
    try:
        election = Election(directory)
    except OSError as error:
        raise AgentError(f"{directory}: cannot be read: {os.strerror(error.errno or 0)}") from error
    if not election.is_won:
        election.resign()
        raise AgentError(
            f"{directory}: another process reads these tapes: an agent, or a rank (OTEL_PYTHON_TORCHDIST_READER=thread)"
        )
    return election


def _of_runs_that_live(tapes: list[TapeReader]) -> list[TapeReader]:
    """The tapes of runs with a rank that lives, and of ranks that do not know their run yet; all when nobody lives.

    A directory may hold what an earlier job or attempt left; that was somebody else's to export.
    """
    runs = {run_of(tape) for tape in tapes if tape.is_alive()}
    if not runs:
        return tapes
    wanted = [tape for tape in tapes if tape.is_alive() or (run_of(tape) or -1) in runs]
    for tape in tapes:
        if tape not in wanted:
            tape.close()
    return wanted
