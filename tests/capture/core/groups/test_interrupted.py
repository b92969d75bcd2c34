"""Exceptions that the program raises inside our code (signal handlers): all arrive, and no record stays open for them.

For a long run: `python tests/capture/core/groups/workers/interrupted.py signal 50000`.
"""

from __future__ import annotations

import pytest

from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER

TIMES = 400


@pytest.mark.parametrize("way", ["signal", pytest.param("thread", marks=pytest.mark.thorough)])
def test_raised_at_random_moments(jobs: Jobs, way: str) -> None:
    """Exceptions interrupt collectives, waits and optimizer steps at random moments, and all of them arrive.

    They come from signal handlers and other threads. The sequence numbers stay gloo's: an operation that was
    interrupted after it was issued counts.
    """
    found = jobs.run("interrupted", 1, way, str(TIMES)).ranks[0].line()
    assert (found["raised"], found["caught"], found["lost"]) == (TIMES, TIMES, 0)
    assert found["seen_open"] == 0
    assert found["held"] <= 1, "only the call that the thread has waited for last stays in memory"
    assert found["sequence"] == found["given_to_gloo"]


def test_deadline_while_rank_0_sets_the_id(jobs: Jobs) -> None:
    """An exception while rank 0 sends the run id arrives immediately. The group exists, and the run gets its id."""
    job = jobs.run("deadline_in_rendezvous", 1)
    found = job.ranks[0].line()
    assert (found["caught"], found["is_there"], found["open"]) == (True, True, 0)
    assert found["state"] == "UNAGREED"
    assert [operation.name for operation in job.tapes[0].operations] == ["all_reduce", "barrier"]


@NATIVE_LATER
@pytest.mark.parametrize(
    "create", ["new_group", "init_process_group", pytest.param("launch", marks=pytest.mark.thorough)]
)
def test_while_groups_are_created(jobs: Jobs, create: str) -> None:
    """An exception at any line of our hooks for group creation arrives, and no record stays open."""
    found = jobs.run("interrupted_creation", 1, create).ranks[0].line()
    assert found["lines"] > 30
    assert (found["left_open"], found["swallowed"], found["is_there"]) == ({}, [], True)
