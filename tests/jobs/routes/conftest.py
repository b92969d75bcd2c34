"""Runs every worker twice, once recorded and once alone, for the first test that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

import pytest

from benchmarks.native_library import BUILT
from tests.jobs.routes.twins import WORKERS, Alone, Twins
from tests.support.launch.jobs import Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of

COMPILED: Final = BUILT / "inductor" / version("torch")
"""Where Inductor keeps what it has compiled, under keys of all that goes into it; that takes 10 s of a core."""


@pytest.fixture(scope="session")
def jobs(warm_python: WarmPython) -> Iterator[Jobs]:
    """Runs jobs."""
    jobs = Jobs(warm_python, WORKERS)
    yield jobs
    jobs.clean_up()


@pytest.fixture(scope="session")
def alone(jobs: Jobs) -> Alone:
    """The runs without us."""
    return Alone(jobs, COMPILED)


@pytest.fixture(scope="session", params=KERNELS)
def twins(request: pytest.FixtureRequest, jobs: Jobs, alone: Alone) -> Twins:
    """All pairs of runs, recorded in Python and natively."""
    return Twins(jobs, alone, environ_of(request.param))
