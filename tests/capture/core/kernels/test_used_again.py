"""Objects at reused addresses are not confused with the objects that were there before."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.launch.jobs import Job, Jobs

TIMES = 60
SESSIONS = 6


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """A program in which Works, tensors and sessions reuse each other's addresses."""
    return jobs.run("used_again")


def ends_of(job: Job, name: str) -> Counter[str]:
    """Return the kinds of end of an operation's calls in the first session, in any form of the call."""
    return Counter(one.how for form in (name, f"{name}_coalesced") for one in job.tapes[0].named(form))


def test_works(job: Job) -> None:
    """A wait for a Work that Python follows is recorded, although the library followed another Work at its address."""
    assert ends_of(job, "broadcast") == {"WAIT": TIMES}


def test_memory(job: Job) -> None:
    """A wait for a tensor is recorded, although the library followed another tensor at its address."""
    assert ends_of(job, "all_gather_into_tensor") == {"WAIT": TIMES}


def test_no_memory(job: Job) -> None:
    """Tensors without elements are not confused with each other: a wait for one changes no other record."""
    ends = ends_of(job, "reduce_scatter_tensor")
    assert ends.total() == TIMES
    assert not ends.keys() - {"WAIT", "CALLBACK"}
    assert not any(bytes.fromhex(job.ranks[0].line()["before_first"]))


def test_sessions(job: Job) -> None:
    """A new session has neither plans nor code of an earlier session at the same address."""
    ends = job.ranks[0].line()["ends"]
    assert len(ends) == SESSIONS
    assert [one for one in ends if one != ends[0]] == []


def test_kernels_in_turns(jobs: Jobs) -> None:
    """Sessions that record natively and in Python by turns each have all of their calls, while DDP continues."""
    tapes = jobs.run("sessions").tapes
    assert [len(tape.operations) for tape in tapes] == [8] * 12
    assert all(operation.has_ended for tape in tapes for operation in tape.operations)
