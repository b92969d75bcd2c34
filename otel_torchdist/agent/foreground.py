"""The agent started by hand: reads a job in the foreground of a terminal, and logs each finding in a line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.life_log import LifeLog
from otel_torchdist.job.directory import tapes_in
from otel_torchdist.job.tapes import newest_live_job
from otel_torchdist.model.lives import RankLife
from otel_torchdist.this_process.stop_signals import StopSignals

CHECK_S: Final = 0.25
CONCLUDING_S: Final = 4.0
CONCLUDING_CHECK_S: Final = 0.1

_logger = logging.getLogger("otel_torchdist")


def wait_for_job(base: Path, run_dir: Path | None, timeout_s: float, stop: StopSignals) -> Path | None:
    """Wait for a job directory with tapes to read; None if there is none in time.

    Args:
        base: Where to search for the job directory of a live rank.
        run_dir: The job directory, if it is known; its ranks need not be alive.
        timeout_s: How long to wait.
        stop: Ends the wait.
    """
    deadline = time.monotonic() + timeout_s
    while stop.received is None:
        found = newest_live_job(base) if run_dir is None else run_dir if tapes_in(run_dir) else None
        left_s = deadline - time.monotonic()
        if found is not None or left_s <= 0:
            return found
        stop.wait(min(CHECK_S, left_s))
    return None


class Foreground:
    """Runs an agent until its job is over."""

    def __init__(
        self, agent: Agent, keep_s: float, is_awaited: bool = False, stays: Callable[[], bool] = lambda: False
    ) -> None:
        """Take ownership of `agent`.

        Args:
            agent: The agent.
            keep_s: How long to stay at most after the last rank has ended.
            is_awaited: Whether to assume that scrapers exist although none has come yet.
            stays: Polled to decide whether to stay although no rank runs, because a launcher may start more.
        """
        self._agent = agent
        self._keep_s = keep_s
        self._is_awaited = is_awaited
        self._stays = stays
        self._log = LifeLog(agent.reader)

    def run(self, stop: StopSignals) -> None:
        """Read until all ranks have ended or a signal comes, then flush."""
        agent = self._agent
        for directory in agent.directories:
            _logger.info("reading %s", directory)
        try:
            self._turn()
            if agent.metrics_port is not None:
                _logger.info("/metrics is served on port %d", agent.metrics_port)
            was_live = RankLife.RUNNING in self._log.latest
            self._follow(stop)
            self._conclude(stop)
            has_failed = any(life is not RankLife.FINISHED for life in self._log.latest)
            if was_live or (self._is_awaited and has_failed):  # it may have begun after the job's end
                self._linger(stop)
        finally:
            agent.close()
        self._log_end(stop)

    def _turn(self) -> None:
        self._agent.turn()
        self._log.update()

    def _follow(self, stop: StopSignals) -> None:
        while stop.received is None and (self._agent.reader.any_running or self._stays()):
            stop.wait(self._agent.reader.watch.next_check_s)
            self._turn()

    def _conclude(self, stop: StopSignals) -> None:
        """Report how the last ranks ended, and let peer agents see their last calls, for at most four seconds."""
        deadline = time.monotonic() + CONCLUDING_S
        while self._is_concluding(stop) and time.monotonic() < deadline:
            time.sleep(CONCLUDING_CHECK_S)
            self._turn()

    def _is_concluding(self, stop: StopSignals) -> bool:
        reader = self._agent.reader
        if stop.received is not None:
            return reader.watch.is_concluding
        is_known = not reader.watch.awaits_last_verdict and RankLife.RUNNING not in self._log.latest
        return reader.watch.is_concluding or not is_known or self._agent.is_announcing

    def _linger(self, stop: StopSignals) -> None:
        """Stay for a final scrape, and for ranks that are restarted."""
        scrapes = self._agent.scrapes
        deadline = time.monotonic() + self._keep_s
        while stop.received is None and time.monotonic() < deadline and self._may_be_needed(scrapes):
            stop.wait(CHECK_S)
            self._turn()
            if self._agent.reader.any_running:
                self._follow(stop)
                scrapes = self._agent.scrapes
                deadline = time.monotonic() + self._keep_s

    def _may_be_needed(self, scrapes_before: int) -> bool:
        """Whether ranks have failed, which launchers restart, or known scrapers have not scraped since."""
        if any(life is not RankLife.FINISHED for life in self._log.latest):
            return True
        is_awaited = scrapes_before > 0 or (self._is_awaited and self._agent.metrics_port is not None)
        return is_awaited and self._agent.scrapes == scrapes_before

    def _log_end(self, stop: StopSignals) -> None:
        dropped = self._agent.reader.spans_dropped()
        loss = f"; {dropped} spans could not be exported" if dropped else ""
        if stop.received is not None:
            _logger.info("stopped by %s; everything recorded so far was exported%s", stop.received.name, loss)
        elif not self._log.latest:
            _logger.info("found no readable tape")
        else:
            _logger.info("all ranks have ended; everything they recorded was exported%s", loss)
