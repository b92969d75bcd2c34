"""`diagnose` on a job in which native code holds every rank's GIL: heartbeats stop, but nothing is suspended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.processes.death_watch import DeathWatch
from otel_torchdist.stall.watch import StallWatch
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.verdict.rules import StallRules
from tests.stall.test_watch import SIZE, RankProcess
from tests.support.commands.asking import ask
from tests.support.waiting import until

pytestmark = pytest.mark.thorough
THRESHOLD_S = 2.0


class Watched:
    """Three rank processes and an agent's handling of deaths."""

    def __init__(self, directory: Path) -> None:
        self.ranks = [RankProcess(directory, rank) for rank in range(SIZE)]
        for rank in self.ranks:
            rank.ready()
        self._directory = directory
        self._tapes = [TapeReader(path) for path in directory.glob("*.tape")]
        self._deaths = DeathWatch()
        self._watch = StallWatch(StallRules(round(THRESHOLD_S * 1e9)), deaths=self._deaths)
        for tape in self._tapes:
            self._watch.follow(tape)

    def check_until(self, then: float) -> None:
        """Poll as an agent does, until this time."""
        while time.monotonic() < then:
            for tape in self._tapes:
                self._watch.observe(tape.identity.nonce, tape.poll())
            self._watch.check(time.monotonic_ns())
            time.sleep(0.2)

    def signal_all(self, number: int) -> None:
        """Send a signal to every rank."""
        for rank in self.ranks:
            os.kill(rank.process.pid, number)

    def kill(self) -> None:
        """Kill all ranks, and wait until that is recorded."""
        self.signal_all(signal.SIGKILL)
        for rank in self.ranks:
            rank.process.wait()
        until(lambda: len(list(self._directory.glob("*.death"))) == SIZE)

    def close(self) -> None:
        """Kill what is left."""
        self._deaths.stop()
        for rank in self.ranks:
            rank.close()
        for tape in self._tapes:
            tape.close()


@pytest.fixture
def job(base: Path) -> Iterator[Watched]:
    """A job in which ranks 0 and 1 wait for rank 2."""
    directory = base / "job-000000000000000a"
    directory.mkdir(mode=0o700)
    watched = Watched(directory)
    for rank in watched.ranks[:2]:
        rank.send("enter 1")
    yield watched
    watched.close()


def verdict(base: Path) -> dict[str, Any] | None:
    """The verdict of `diagnose --json`."""
    return ask(base, "--json", threshold_s=THRESHOLD_S).document["verdict"]


def test_gil_is_held_in_every_rank(job: Watched, base: Path) -> None:
    """The rank that is missing is named while they live, and after all were killed."""
    for rank in job.ranks:
        rank.send("hold")
    job.check_until(time.monotonic() + THRESHOLD_S + 1.5)
    living = verdict(base)
    assert living is not None
    assert (living["kind"], living["ranks"]) == ("absent", [2])
    job.kill()
    dead = verdict(base)
    assert dead is not None
    assert (dead["kind"], dead["ranks"]) == ("absent", [2])
    assert dead["hung_s"] >= THRESHOLD_S


def test_every_rank_is_stopped(job: Watched, base: Path) -> None:
    """No rank of a suspended job is blamed, neither while it is suspended nor when it is then killed."""
    job.signal_all(signal.SIGSTOP)
    job.check_until(time.monotonic() + THRESHOLD_S + 1.5)
    assert verdict(base) is None
    job.kill()
    assert verdict(base) is None
