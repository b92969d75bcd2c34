"""No user's tapes take all memory of a node's service, and no honest job is left out for that."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.job import Job
from otel_torchdist.agent.limits import MAX_BYTES_OF_USER, MemoryShares, footprint
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.config import Config
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.tape.reading.reader import TapeReader
from tests.agent.conftest import STRANGER, quiet_outputs
from tests.agent.workers import many_groups
from tests.support.tapes.tapes import start

NEIGHBOR = STRANGER + 1
SMALL_SHARE = 8 << 20
MANY = (4, 700, 3)
"""Tapes, groups and members that take more than that."""
FEW = (1, 10, 3)

Begin = Callable[..., Path]


@pytest.fixture
def begin_tapes(base: Path) -> Iterator[Begin]:
    """Begins a job of a user with tapes as described in the worker; returns its directory."""
    with ExitStack() as stack:

        def begin(digit: int, size: tuple[int, int, int], user: int | None = None) -> Path:
            directory = base / f"job-{digit:016x}"
            process = start(Path(many_groups.__file__), directory, *size)
            stack.callback(process.communicate)
            assert process.stdout is not None and process.stdout.readline() == "ok\n"
            for path in (directory, *directory.iterdir()) if user is not None else ():
                os.chown(path, user or 0, user or 0)
            return directory

        yield begin


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent in which a user's share is small."""
    agent = Agent(Config(), quiet_outputs, shares=MemoryShares(SMALL_SHARE))
    yield agent
    agent.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_largest_job_is_left_out(begin_tapes: Begin, agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """A user's largest job goes, with one warning that names it; that user's other job and the neighbor's stay."""
    large, small = begin_tapes(1, MANY, STRANGER), begin_tapes(2, FEW, STRANGER)
    other = begin_tapes(3, FEW, NEIGHBOR)
    for directory in (small, large, other):
        agent.add(Job(directory))
    for _ in range(3):
        agent.turn()
    assert agent.directories == [small, other]
    assert large in agent.given_up
    assert {tape.path.parent for tape in agent.reader.tapes} == {small, other}
    assert 0 < agent.reader.shares.of_user(STRANGER) < SMALL_SHARE
    [warning] = [text for text in caplog.messages if "no longer read" in text]
    assert warning.startswith(f"{large} is no longer read: the tapes of user {STRANGER} take about ")
    assert "MiB of this process's memory; the limit for one user is 8 MiB. All ranks of that job are left" in warning
    assert (large / "agent.checkpoint").exists(), "it is read on from where it was left"


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_new_directories_are_no_new_warnings(
    begin_tapes: Begin, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """A user whose every job is too large is named once in ten minutes, and takes no more memory each time."""
    for digit in range(3):
        agent.add(Job(begin_tapes(digit, MANY, STRANGER)))
        for _ in range(2):
            agent.turn()
        assert agent.directories == []
        assert agent.reader.shares.of_user(STRANGER) == 0
    assert sum("no longer read" in text for text in caplog.messages) == 1


def test_reading_stops_at_the_bound(begin_tapes: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a share is exceeded, no further tape of that user is read: all of a job's are taken up in one turn."""
    monkeypatch.setattr(os, "geteuid", lambda: NEIGHBOR)  # the tapes are a stranger's then
    directory = begin_tapes(1, (12, 700, 3))
    reader = followed(directory, MemoryShares(SMALL_SHARE))
    reader.turn()
    [user] = reader.shares.exceeded()
    one = footprint(reader.tapes[0], 700)
    assert SMALL_SHARE < reader.shares.of_user(user) <= SMALL_SHARE + one
    reader.close()


def test_own_tapes_may_take_any_amount(begin_tapes: Begin, agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """The bound is for tapes of other users: a job's own agent reads the job, whatever its size."""
    directory = begin_tapes(1, MANY)
    agent.add(Job(directory))
    for _ in range(3):
        agent.turn()
    assert agent.directories == [directory]
    assert agent.reader.shares.of_user(os.geteuid()) > SMALL_SHARE
    assert not [text for text in caplog.messages if "no longer read" in text]


def followed(directory: Path, shares: MemoryShares | None = None) -> Reader:
    """A reader that has read the tapes of a directory."""
    reader = Reader(quiet_outputs(), 1_000, StallWatch(StallRules(10**10)), shares=shares)
    for path in sorted(directory.glob("*.tape")):
        reader.follow(TapeReader(path))
    reader.turn()
    return reader


def test_honest_jobs_are_far_from_it(begin_tapes: Begin) -> None:
    """Eight ranks that use 300 groups of 1,024 members each fit; of 64 members, eight such jobs do."""
    large = followed(begin_tapes(1, (1, 300, 1_024)))
    usual = followed(begin_tapes(2, (1, 300, 64)))
    user = os.geteuid()
    assert 8 * large.shares.of_user(user) < MAX_BYTES_OF_USER
    assert 8 * 8 * usual.shares.of_user(user) < MAX_BYTES_OF_USER
    for reader in (large, usual):
        reader.close()


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(2, 600, 3), (2, 100, 512)], ids=["many groups", "large groups"])
def test_the_estimate_is_near(begin_tapes: Begin, size: tuple[int, int, int]) -> None:
    """The estimate is between half and twice what this process allocates."""
    followed(begin_tapes(1, FEW)).close()  # what all readers share
    directory = begin_tapes(2, size)
    gc.collect()
    tracemalloc.start()
    try:
        reader = followed(directory)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    estimate = reader.shares.of_user(os.geteuid())
    assert estimate / 2 < kept < estimate * 2, (kept, estimate)
    reader.close()
