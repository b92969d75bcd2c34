"""Addresses that are used again: what the library remembers of them is not what is there now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launch.jobs import Job, Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of

TIMES = 60
SESSIONS = 6


@pytest.fixture(scope="module")
def job(warm_python: WarmPython) -> Iterator[Job]:
    """A program that is recorded natively."""
    jobs = Jobs(warm_python, Path(__file__).parent / "workers", environ=environ_of("native"))
    yield jobs.run("used_again")
    jobs.clean_up()


def ends_of(job: Job, name: str) -> Counter[str]:
    """How the ends of an operation's calls are known, in the first session."""
    return Counter(operation.how for operation in job.tapes[0].named(name))


def test_works(job: Job) -> None:
    """The wait for a Work that Python follows is seen, though the library has followed another one at its address."""
    assert ends_of(job, "broadcast") == {"WAIT": TIMES}


def test_memory(job: Job) -> None:
    """So is that for a tensor, by its memory."""
    assert ends_of(job, "all_gather_into_tensor_coalesced") + ends_of(job, "all_gather_into_tensor") == {"WAIT": TIMES}


def test_no_memory(job: Job) -> None:
    """Tensors without elements are not taken for each other, and a wait for one writes to no other record."""
    ends = ends_of(job, "reduce_scatter_tensor_coalesced") + ends_of(job, "reduce_scatter_tensor")
    assert ends.total() == TIMES
    assert not ends.keys() - {"WAIT", "CALLBACK"}
    assert not any(bytes.fromhex(job.ranks[0].line()["before_first"]))


def test_sessions(job: Job) -> None:
    """A session has no plans and no code of one before, which had its address."""
    ends = job.ranks[0].line()["ends"]
    assert len(ends) == SESSIONS
    assert [one for one in ends if one != ends[0]] == []
    assert "CALLBACK" in ends[0]
