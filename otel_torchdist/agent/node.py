"""The agent as a service of a node: it reads every run of every user's that nobody else reads, on one port."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from otel_torchdist.agent.job import AgentError, Job
from otel_torchdist.agent.jobs import live_jobs
from otel_torchdist.agent.lives import LifeLog
from otel_torchdist.agent.process import Agent
from otel_torchdist.agent.stop_signals import StopSignals

SEARCH_S: Final = 1.0
USUAL_BASES: Final = "otel-torchdist-*"
"""Where tapes lie in `/dev/shm`, one directory a user."""

_logger = logging.getLogger("otel_torchdist")


class NodeWatch:
    """Runs an agent until it is told to stop."""

    def __init__(self, agent: Agent, base: Path | None, keep_s: float) -> None:
        """Own `agent` from now on.

        Args:
            agent: The agent; it reads nothing yet.
            base: Where job directories are looked for; in every user's usual place when None.
            keep_s: How long a job is kept after its last rank has ended.
        """
        self._agent = agent
        self._base = base
        self._keep_s = keep_s
        self._log = LifeLog(agent.reader)
        self._live_at: dict[Path, float] = {}

    def run(self, stop: StopSignals) -> None:
        """Read whatever comes until a signal comes, then flush."""
        searched_at = float("-inf")
        try:
            while stop.received is None:
                if time.monotonic() - searched_at >= SEARCH_S:
                    searched_at = time.monotonic()
                    self._search()
                self._agent.turn()
                self._log.update()
                stop.wait(self._agent.reader.next_turn_s)
        finally:
            self._agent.close()

    def _search(self) -> None:
        """Take up jobs with a rank that lives, and leave those that have had none for a while."""
        now = time.monotonic()
        live = [directory for base in self._bases() for directory in live_jobs(base)]
        # Also one whose directory somebody has removed, as long as its ranks live: their tapes are open here.
        held = [tape.path.parent for tape in self._agent.reader.tapes if tape.is_alive()]
        self._live_at.update(dict.fromkeys([*live, *held], now))
        for directory in live:
            if directory not in self._agent.directories:
                self._take_up(directory)
        for directory in self._agent.directories:
            if now - self._live_at[directory] > self._keep_s:
                _logger.info("leaving %s", directory)
                self._agent.drop(directory)
                del self._live_at[directory]

    def _take_up(self, directory: Path) -> None:
        try:
            self._agent.add(Job(directory))
        except AgentError as error:
            _logger.debug("%s", error)  # an agent of its own reads it, or its ranks do
            return
        _logger.info("reading %s", directory)

    def _bases(self) -> Iterable[Path]:
        return [self._base] if self._base is not None else sorted(Path("/dev/shm").glob(USUAL_BASES))
