"""Addresses that are used again: what the library remembers of them is not what is there now."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.launch.jobs import Job, Jobs

TIMES = 60
SESSIONS = 6


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """A program whose Works, tensors and sessions get each other's addresses."""
    return jobs.run("used_again")


def ends_of(job: Job, name: str) -> Counter[str]:
    """How the ends of an operation's calls are known, in the first session, whichever form torch gives the call."""
    return Counter(one.how for form in (name, f"{name}_coalesced") for one in job.tapes[0].named(form))


def test_works(job: Job) -> None:
    """The wait for a Work that Python follows is seen, though the library has followed another one at its address."""
    assert ends_of(job, "broadcast") == {"WAIT": TIMES}


def test_memory(job: Job) -> None:
    """So is that for a tensor, by its memory."""
    assert ends_of(job, "all_gather_into_tensor") == {"WAIT": TIMES}


def test_no_memory(job: Job) -> None:
    """Tensors without elements are not taken for each other, and a wait for one writes to no other record."""
    ends = ends_of(job, "reduce_scatter_tensor")
    assert ends.total() == TIMES
    assert not ends.keys() - {"WAIT", "CALLBACK"}
    assert not any(bytes.fromhex(job.ranks[0].line()["before_first"]))


def test_sessions(job: Job) -> None:
    """A session has no plans and no code of one before, which had its address."""
    ends = job.ranks[0].line()["ends"]
    assert len(ends) == SESSIONS
    assert [one for one in ends if one != ends[0]] == []


def test_kernels_in_turns(jobs: Jobs) -> None:
    """Sessions that are recorded natively and in Python by turns, as DDP goes on, each have all of their calls."""
    tapes = jobs.run("sessions").tapes
    assert [len(tape.operations) for tape in tapes] == [8] * 12
    assert all(operation.has_ended for tape in tapes for operation in tape.operations)
