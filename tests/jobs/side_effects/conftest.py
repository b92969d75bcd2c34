"""Runs the workers of this folder as the ranks of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.jobs import Job, Jobs
from tests.support.warm_python import WarmPython

WORKERS = Path(__file__).parent / "workers"


class Run(Protocol):
    """Runs a worker of this folder."""

    def __call__(self, worker: str, ranks: int = 1, *arguments: str, **options: Any) -> Job:
        """See `Jobs.run`."""
        ...


@pytest.fixture(scope="module")
def run(warm_python: WarmPython) -> Iterator[Run]:
    """Runs jobs."""
    jobs = Jobs(warm_python, WORKERS)
    yield jobs.run
    jobs.clean_up()
