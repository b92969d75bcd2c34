"""Runs every worker twice, once recorded and once alone, for the first test that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.routes.twins import WORKERS, Alone, Twins
from tests.support.launch.jobs import Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of


@pytest.fixture(scope="session")
def jobs(warm_python: WarmPython) -> Iterator[Jobs]:
    """Runs jobs."""
    jobs = Jobs(warm_python, WORKERS)
    yield jobs
    jobs.clean_up()


@pytest.fixture(scope="session")
def alone(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The runs without us."""
    compiled: Path = tmp_path_factory.mktemp("compiled")
    return Alone(jobs, compiled)


@pytest.fixture(scope="session", params=KERNELS)
def twins(request: pytest.FixtureRequest, jobs: Jobs, alone: Alone) -> Twins:
    """All pairs of runs, recorded in Python and natively."""
    return Twins(jobs, alone, environ_of(request.param))
