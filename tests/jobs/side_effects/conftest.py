"""Runs the workers of this folder as the ranks of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.launch.jobs import Job, Jobs
from tests.support.launch.warm_python import WarmPython

WORKERS = Path(__file__).parent / "workers"


Run = Callable[..., Job]
"""See `Jobs.run`."""


@pytest.fixture(scope="module")
def run(warm_python: WarmPython) -> Iterator[Run]:
    """Runs jobs."""
    jobs = Jobs(warm_python, WORKERS, ends_ordinarily=True)
    yield jobs.run
    jobs.clean_up()
