"""The agent in the foreground, as started by hand: reads one job, and logs to the terminal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.errors import TapeError
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.text import name_ranks
from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.node.job.runs.lives import is_helper, read_death, run_of
from otel_torchdist.node.job.slurm import is_of_slurm_job
from otel_torchdist.node.job.tapes import jobs_by_newest_rank
from otel_torchdist.system.this_process.commands import StopSignals
from otel_torchdist.tape.identity import TapeIdentity
from otel_torchdist.tape.reading.reader import TapeReader

CHECK_S: Final = 0.25
CONCLUDING_S: Final = 4.0
CONCLUDING_CHECK_S: Final = 0.1

_logger = logging.getLogger("otel_torchdist")


def wait_for_job(
    base: Path, run_dir: Path | None, timeout_s: float, stop: StopSignals, slurm_job: str = ""
) -> Path | None:
    """Wait for a job directory with tapes; return None if there is none in time.

    Args:
        base: Base directory to search for the newest job with a live rank.
        run_dir: The job directory, whose ranks need not be alive; None to search.
        timeout_s: Longest time to wait.
        stop: Ends the wait.
        slurm_job: Id of the Slurm job whose ranks to search for; '' for any.
    """
    deadline = time.monotonic() + timeout_s
    while stop.received is None:
        if run_dir is None:
            directory = next((job for job in jobs_by_newest_rank(base) if is_of_slurm_job(job, slurm_job)), None)
        else:
            directory = run_dir if tapes_in(run_dir) else None
        left_s = deadline - time.monotonic()
        if directory is not None or left_s <= 0:
            return directory
        stop.wait(min(CHECK_S, left_s))
    return None


class Foreground:
    """A run of an agent until its job is over."""

    def __init__(
        self, agent: Agent, keep_s: float, expects_scraper: bool = False, stays: Callable[[], bool] = lambda: False
    ) -> None:
        """Take ownership of `agent`.

        Args:
            agent: The agent.
            keep_s: Longest time to stay after the last rank has ended.
            expects_scraper: Whether to assume that a scraper will come, even before the first scrape.
            stays: Returns whether to stay although no rank is running, because a launcher may start more.
        """
        self._agent = agent
        self._keep_s = keep_s
        self._expects_scraper = expects_scraper
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
            if stop.received is not None:
                agent.leave_evidence()
            self._conclude(stop)
            has_failed = any(life is not RankLife.FINISHED for life in self._log.latest)
            if was_live or (self._expects_scraper and has_failed):  # this agent may have started after the job's end
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
        """Keep reading until the ends of the last ranks are known, and until peer agents have these ranks' last calls.

        Takes at most `CONCLUDING_S`.
        """
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
        """Stay for a final scrape, or for restarted ranks."""
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
        """Return whether a launcher may restart failed ranks, or a scraper has not scraped since the end."""
        if any(life is not RankLife.FINISHED for life in self._log.latest):
            return True
        expects_scraper = scrapes_before > 0 or (self._expects_scraper and self._agent.metrics_port is not None)
        return expects_scraper and self._agent.scrapes == scrapes_before

    def _log_end(self, stop: StopSignals) -> None:
        dropped = self._agent.reader.spans_dropped()
        loss = f"; {dropped} spans could not be exported" if dropped else ""
        if stop.received is not None:
            _logger.info("stopped by %s; everything recorded so far was exported%s", stop.received.name, loss)
        elif not self._log.latest:
            _logger.info("found no readable tape")
        else:
            _logger.info("all ranks have ended; everything they recorded was exported%s", loss)


# --- lives of ranks ---------------------------------------------------------------------------------------------------
# Logs when ranks appear and how they end.


def _predicate(life: RankLife, several: bool) -> str:
    match life:
        case RankLife.RUNNING:
            return "are running" if several else "is running"
        case RankLife.FINISHED:
            return "have ended" if several else "has ended"
        case RankLife.FAILED:
            return "have failed" if several else "has failed"
        case RankLife.DEAD:
            return "are dead: their processes are gone" if several else "is dead: its process is gone"


class LifeLog:
    """The log of ranks that appear, end, fail or die. Ranks with the same fate share a line."""

    def __init__(self, reader: Reader) -> None:
        """Follow the tapes of a reader."""
        self._reader = reader
        self._lives: dict[int, RankLife] = {}
        self._newest: dict[int, TapeIdentity] = {}

    @property
    def latest(self) -> list[RankLife]:
        """Last known state of each rank, in its last attempt. Helper processes are left out."""
        return [self._lives[identity.nonce] for identity in self._newest.values()]

    def update(self) -> None:
        """Check all tapes, and log changes."""
        new: list[TapeReader] = []
        ended: dict[tuple[RankLife, str, bool, Path], list[int]] = {}
        for tape in self._reader.tapes:
            try:
                life = self._reader.life_of(tape)
                failure = tape.names.text(tape.status().failure) or ""
            except TapeError:
                continue  # the reader warns of it
            before, is_of_helper = self._lives.get(tape.identity.nonce), is_helper(tape, self._reader.tapes)
            if before is None:
                new.append(tape)
                if not is_of_helper:
                    self._remember(tape.identity)
            if life is not before and life is not RankLife.RUNNING:
                if life is RankLife.FAILED and not failure:
                    failure = _exit_code(tape)
                ended.setdefault((life, failure, is_of_helper, tape.path.parent), []).append(tape.identity.rank)
            self._lives[tape.identity.nonce] = life
        _log_new(new, self._reader.tapes)
        is_one_job = len({tape.path.parent for tape in self._reader.tapes}) < 2
        for (life, failure, are_helpers, directory), ranks in ended.items():
            several = len(set(ranks)) > 1
            reason, where = f" with {failure}" if failure else "", "" if is_one_job else f", in {directory}"
            _logger.info("%s %s%s%s", _named(ranks, are_helpers), _predicate(life, several), reason, where)

    def _remember(self, identity: TapeIdentity) -> None:
        newest = self._newest.get(identity.rank, identity)
        if newest.monotonic_ns <= identity.monotonic_ns:
            self._newest[identity.rank] = identity


def _exit_code(tape: TapeReader) -> str:
    death = read_death(tape.path, tape.owner)
    return f"exit code {death.exit_code}" if death is not None and death.exited_in_error else ""


def _log_new(new: list[TapeReader], tapes: list[TapeReader]) -> None:
    runs: dict[tuple[str, int, str, bool, Path], set[int]] = {}
    for tape in new:
        identity, is_of_helper = tape.identity, is_helper(tape, tapes)
        key = run_label(run_of(tape)), identity.world_size, identity.host, is_of_helper, tape.path.parent
        runs.setdefault(key, set()).add(identity.rank)
    for (run, world_size, host, are_helpers, _), ranks in runs.items():
        of_run = f" in run {run}" if run else ""
        _logger.info("found %s of %d%s on %s", _named(ranks, are_helpers), world_size, of_run, host)


def _named(ranks: Collection[int], are_helpers: bool) -> str:
    named = name_ranks(sorted(set(ranks)))
    if not are_helpers:
        return named
    return f"the helper process{'es' * (len(set(ranks)) > 1)} of {named}"
