"""Programs that call from very many places, or in very many threads, pay little memory for being recorded."""

from __future__ import annotations

import pytest

from tests.support.launch.jobs import Job, Jobs
from tests.support.native.native_library import KERNELS

MOST_KB = 32
MOST_CODE = 5_500


@pytest.fixture(scope="module")
def many_places(jobs_of: dict[str, Jobs]) -> dict[str, Job]:
    """The program, recorded by each kernel."""
    return {kernel: jobs.run("many_places") for kernel, jobs in jobs_of.items()}


@pytest.mark.parametrize("kernel", KERNELS)
def test_code_that_is_used_once(many_places: dict[str, Job], kernel: str) -> None:
    """Code objects are held up to a bound, and the program's others are freed."""
    (seen,) = many_places[kernel].ranks[0].lines()
    assert seen["code"] <= MOST_CODE


@pytest.mark.parametrize("kernel", KERNELS)
def test_many_threads(many_places: dict[str, Job], kernel: str) -> None:
    """A thread that makes few calls takes little."""
    (seen,) = many_places[kernel].ranks[0].lines()
    assert seen["per_thread_kb"] <= MOST_KB
