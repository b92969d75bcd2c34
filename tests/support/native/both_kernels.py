"""Jobs whose operations are recorded in Python and natively: each test runs with both kernels, which say the same.

A `conftest.py` offers the fixtures to its folder: `from tests.support.native.both_kernels import jobs, jobs_of`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.launch.jobs import Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of

NATIVE_LATER: Final = pytest.mark.parametrize(
    "jobs", ["python", pytest.param("native", marks=pytest.mark.thorough)], indirect=True
)
"""Marks a test whose job takes long, and which `make test` runs with the kernel in Python alone."""
IN_PYTHON: Final = pytest.mark.parametrize("jobs", ["python"], indirect=True)
"""Marks a test of what both kernels share: hooks of torch that record nothing themselves."""


@pytest.fixture(scope="module", params=KERNELS)
def jobs(request: pytest.FixtureRequest, warm_python: WarmPython) -> Iterator[Jobs]:
    """Runs the workers beside a test, recorded in Python and natively: a test that uses it runs with each kernel."""
    jobs = Jobs(warm_python, request.path.parent / "workers", environ=environ_of(request.param))
    yield jobs
    jobs.clean_up()


@pytest.fixture(scope="module")
def jobs_of(request: pytest.FixtureRequest, warm_python: WarmPython) -> Iterator[dict[str, Jobs]]:
    """Runs the workers beside a test, by kernel: for a test that compares what both record of the same program."""
    workers = request.path.parent / "workers"
    found = {kernel: Jobs(warm_python, workers, environ=environ_of(kernel)) for kernel in KERNELS}
    yield found
    for jobs in found.values():
        jobs.clean_up()
