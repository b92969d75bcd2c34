"""The stall watch on tapes of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.judge.stall.events import Event, VerdictGiven
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.ranks import rank_process
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.process

SIZE = 3


class RankProcess:
    """One rank's process."""

    def __init__(self, directory: Path, rank: int) -> None:
        command = [sys.executable, rank_process.__file__, str(directory), str(rank), str(SIZE)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ready(self) -> None:
        """Wait for an acknowledgement."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ok\n"

    def send(self, command: str) -> None:
        """Send a command to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        self.ready()

    def close(self) -> None:
        """End the process, whatever state it is in."""
        self.process.kill()
        self.process.communicate()


class Job:
    """Three rank processes, and a reader that polls their tapes, passes batches on, and checks."""

    def __init__(self, directory: Path, threshold_s: float) -> None:
        self.ranks = [RankProcess(directory, rank) for rank in range(SIZE)]
        for rank in self.ranks:
            rank.ready()
        self.watch = StallWatch(StallRules(round(threshold_s * 1e9)))
        self.readers = [TapeReader(path) for path in directory.glob("*.tape")]
        assert len(self.readers) == SIZE
        for reader in self.readers:
            self.watch.follow(reader)
        self.events: list[Event] = []

    def until(self, done: Callable[[], object], deadline_s: float = 10.0) -> None:
        """Poll until a condition holds."""
        give_up = time.monotonic() + deadline_s
        while True:
            for reader in self.readers:
                self.watch.observe(reader.identity.nonce, reader.poll())
            self.events += self.watch.check(time.monotonic_ns())
            if done():
                return
            assert time.monotonic() < give_up
            time.sleep(self.watch.next_check_s)

    @property
    def verdicts(self) -> list[VerdictGiven]:
        """The verdicts given so far."""
        return [event for event in self.events if isinstance(event, VerdictGiven)]

    def stall(self) -> None:
        """Ranks 0 and 1 wait in an operation while rank 2 loads a batch."""
        self.ranks[2].send("load")
        for rank in self.ranks[:2]:
            rank.send("enter 1")

    def close(self) -> None:
        """Kill the ranks and close the tapes."""
        for rank in self.ranks:
            rank.close()
        for reader in self.readers:
            reader.close()


@pytest.fixture
def job(memory: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    """Return a job whose threshold in seconds is the fixture's parameter."""
    started = Job(memory, request.param)
    yield started
    started.close()


def threshold_s(seconds: float) -> pytest.MarkDecorator:
    """Set the threshold of a test's job."""
    return pytest.mark.parametrize("job", [seconds], indirect=True)


@pytest.mark.thorough
@threshold_s(2.0)
def test_gil_is_held_in_every_rank(job: Job) -> None:
    """The GIL is held in every rank, so no heartbeat continues, but no process is suspended: the late rank is named."""
    for rank in job.ranks[:2]:
        rank.send("enter 1")
    for rank in job.ranks:
        rank.send("hold")
    job.until(lambda: job.verdicts)
    [given] = job.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.ABSENT, (2,))
    assert 2.0 <= (given.world.taken_ns - given.verdict.since_ns) / 1e9 <= 5.0
    assert not any(stall.stands_still for stall in job.watch.ongoing)
    assert given.verdict.places[2].frozen_for_ns is not None


@pytest.mark.thorough
@threshold_s(2.0)
def test_every_rank_is_stopped(job: Job) -> None:
    """Nothing is reported while all ranks are stopped but their agent runs. When they continue, ages continue too."""
    job.stall()
    job.until(lambda: True)
    for rank in job.ranks:
        os.kill(rank.process.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    job.until(lambda: time.monotonic() > stopped + 4.0)
    assert job.verdicts == []
    for rank in job.ranks:
        os.kill(rank.process.pid, signal.SIGCONT)
    job.until(lambda: job.verdicts)
    assert [given.verdict.ranks for given in job.verdicts] == [(2,)]
