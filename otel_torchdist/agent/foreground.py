"""The agent by hand: it reads a job from the foreground of a terminal, and logs what it finds, a line each."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from otel_torchdist.agent.jobs import newest_live_job
from otel_torchdist.agent.lives import Life, failure_of, life_of
from otel_torchdist.agent.process import Agent
from otel_torchdist.agent.stop_signals import StopSignals
from otel_torchdist.tape.directory import tapes_in
from otel_torchdist.tape.reader import TapeReader
from otel_torchdist.tape.records import TapeError
from otel_torchdist.telemetry.rank_ranges import compress_ranks
from otel_torchdist.telemetry.run_label import run_label

LOOK_S: Final = 0.25

_logger = logging.getLogger("otel_torchdist")


def wait_for_job(base: Path, run_dir: Path | None, timeout_s: float, stop: StopSignals) -> Path | None:
    """The job directory to read, as soon as there are tapes in it; None when there are none in time.

    Args:
        base: Where job directories are looked for, for one with a rank that lives.
        run_dir: The job directory, when it is known; its ranks need not live.
        timeout_s: How long to wait.
        stop: Ends the wait.
    """
    deadline = time.monotonic() + timeout_s
    while stop.received is None:
        if run_dir is None:
            found = newest_live_job(base)
        else:
            found = run_dir if tapes_in(run_dir) else None
        left_s = deadline - time.monotonic()
        if found is not None or left_s <= 0:
            return found
        stop.wait(min(LOOK_S, left_s))
    return None


class Foreground:
    """Runs an agent until its job is over."""

    def __init__(self, agent: Agent, keep_s: float) -> None:
        """Own `agent` from now on.

        Args:
            agent: The agent.
            keep_s: How long to stay, at most, after the last rank has ended.
        """
        self._agent = agent
        self._keep_s = keep_s
        self._lives: dict[int, Life] = {}

    def run(self, stop: StopSignals) -> None:
        """Read until all ranks have ended or a signal comes, then flush."""
        agent = self._agent
        _logger.info("reading %s", agent.directory)
        if agent.metrics_port is not None:
            _logger.info("metrics are served on port %d, path /metrics", agent.metrics_port)
        try:
            agent.turn()
            self._tell()
            is_post_mortem = Life.RUNNING not in self._lives.values()
            self._follow(stop)
            if not is_post_mortem:
                self._linger(stop)
        finally:
            agent.close()
        self._tell_end(stop)

    def _follow(self, stop: StopSignals) -> None:
        while stop.received is None and self._agent.reader.any_running:
            stop.wait(self._agent.reader.next_turn_s)
            self._agent.turn()
            self._tell()

    def _linger(self, stop: StopSignals) -> None:
        """Stay for a last scrape, and for ranks that are started again."""
        scrapes = self._agent.scrapes
        deadline = time.monotonic() + self._keep_s
        while stop.received is None and time.monotonic() < deadline and self._is_expected(scrapes):
            stop.wait(LOOK_S)
            self._agent.turn()
            self._tell()
            if self._agent.reader.any_running:
                self._follow(stop)
                deadline = time.monotonic() + self._keep_s

    def _is_expected(self, scrapes: int) -> bool:
        """Whether somebody may still come: a launcher starts failed ranks again, and who has scraped scrapes again."""
        if any(life is not Life.FINISHED for life in self._lives.values()):
            return True
        return self._agent.scrapes == scrapes > 0

    def _tell(self) -> None:
        """Log whose life has changed since the last time."""
        changed: dict[tuple[Life, str], list[TapeReader]] = {}
        for tape in self._agent.reader.tapes:
            try:
                life, failure = life_of(tape), failure_of(tape)
            except TapeError:
                continue  # the reader has said so
            nonce = tape.identity.nonce
            if self._lives.get(nonce) is life:
                continue
            if nonce not in self._lives and life is not Life.RUNNING:
                changed.setdefault((Life.RUNNING, ""), []).append(tape)
            self._lives[nonce] = life
            changed.setdefault((life, failure), []).append(tape)
        for (life, failure), tapes in changed.items():
            _logger.info("%s", _sentence(life, failure, tapes))

    def _tell_end(self, stop: StopSignals) -> None:
        dropped = self._agent.reader.spans_dropped()
        loss = f"; {dropped} spans could not be exported" if dropped else ""
        if stop.received is not None:
            _logger.info("stopped by %s; what was recorded so far is exported%s", stop.received.name, loss)
        else:
            _logger.info("all %d ranks have ended; all that they recorded is exported%s", len(self._lives), loss)


def _sentence(life: Life, failure: str, tapes: Iterable[TapeReader]) -> str:
    identities = [tape.identity for tape in tapes]
    ranks = compress_ranks(identity.rank for identity in identities)
    many = len(identities) > 1
    if life is Life.RUNNING:
        runs = sorted({run_label(tape.status().run_id) for tape in tapes} - {""})
        run = f" of run {', '.join(runs)}" if runs else ""
        return f"found {'ranks' if many else 'rank'} {ranks} of {identities[0].world_size}{run} on {identities[0].host}"
    fate = life.value
    if many:
        fate = fate.replace("has ", "have ").replace("is ", "are ", 1)
    return f"{'ranks' if many else 'rank'} {ranks} {fate}" + (f" with {failure}" if failure else "")
