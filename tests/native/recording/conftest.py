"""What runs the programs of this folder with each kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launch.jobs import Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of


@pytest.fixture(scope="module")
def jobs_of(warm_python: WarmPython) -> Iterator[dict[str, Jobs]]:
    """Runs them, by kernel."""
    workers = Path(__file__).parent / "workers"
    found = {kernel: Jobs(warm_python, workers, environ=environ_of(kernel)) for kernel in KERNELS}
    yield found
    for jobs in found.values():
        jobs.clean_up()
