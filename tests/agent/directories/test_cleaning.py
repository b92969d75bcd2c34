"""An agent removes the leftovers of ended runs, for the ranks of its user, which leave that to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.job import Job
from otel_torchdist.config import Config
from tests.agent.conftest import JOB, STRANGER, give_away, quiet_outputs
from tests.support.ranks.job_ranks import Ranks
from tests.support.tapes.directories import key, leave_job, names_in


@pytest.fixture
def keeping_two() -> Iterator[Agent]:
    """An agent whose user keeps two ended jobs."""
    agent = Agent(Config(keep_runs=2), quiet_outputs)
    yield agent
    agent.close()


def left(base: Path) -> set[str]:
    """Jobs beside the one that is read."""
    return names_in(base) - {JOB}


def test_first_turn(begin: Callable[..., Ranks], base: Path, keeping_two: Agent) -> None:
    """As soon as it reads a rank, as many ended jobs are left as are kept, and nothing of its own job is removed."""
    begin(2)
    for number in range(1, 6):
        leave_job(base, number, age_s=100 - number)
    before = names_in(base / JOB)
    keeping_two.add(Job(base / JOB))
    keeping_two.turn()
    assert left(base) == {key(4), key(5)}
    assert before <= names_in(base / JOB)
    leave_job(base, 6, age_s=10)
    keeping_two.turn()
    assert len(left(base)) == 3, "without a new tape there is nothing to clean up"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_nothing_of_another_user(begin: Callable[..., Ranks], base: Path, keeping_two: Agent) -> None:
    """A service that reads the jobs of other users removes none of them."""
    begin(1)
    for number in range(1, 6):
        leave_job(base, number, age_s=100)
    give_away(base, STRANGER)
    keeping_two.add(Job(base / JOB))
    keeping_two.turn()
    assert len(left(base)) == 5
