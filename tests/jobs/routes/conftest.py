"""Runs every worker twice, once recorded and once alone, for the first test that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.routes.twins import WORKERS, Twins
from tests.support.jobs import Jobs
from tests.support.warm_python import WarmPython


@pytest.fixture(scope="session")
def twins(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """All pairs of runs."""
    jobs = Jobs(warm_python, WORKERS)
    compiled: Path = tmp_path_factory.mktemp("compiled")
    yield Twins(jobs, compiled)
    jobs.clean_up()
