"""`expect_wait`: what it records on the tape, and for how long."""

from __future__ import annotations

import pytest

from tests.support.launch.jobs import Job, Jobs


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """A rank that records what it expects."""
    return jobs.run("expecting")


def test_the_longest_counts_and_ends_with_its_block(job: Job) -> None:
    """Nested, after an exception, without a block, with a new process group, and ended twice."""
    assert job.ranks[0].line()["seen"] == [0, 100, 100, 1000, 100, 0, 0, 200, 200, 0, 0]


def test_for_ever_is_very_long(job: Job) -> None:
    """An infinite expectation fits on the tape."""
    assert 9 < job.ranks[0].line()["endless_years"] < 11


def test_what_is_no_time_is_one_warning(job: Job) -> None:
    """A negative value or a non-number is refused with one warning that names it, and nothing is expected."""
    warnings = [line for line in job.ranks[0].err.splitlines() if "expect_wait" in line]
    assert warnings == [
        "expect_wait(-1): not a number of seconds, at least 0: ignored",
        "expect_wait(nan): not a number of seconds, at least 0: ignored",
    ]
