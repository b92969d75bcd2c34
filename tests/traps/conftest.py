"""Runs the workers of this folder as the ranks of jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.capture.conftest import Job, Jobs
from tests.support.warm_python import WarmPython

WORKERS = Path(__file__).parent / "workers"


class Run(Protocol):
    """Runs a worker of this folder."""

    def __call__(self, worker: str, ranks: int = 1, *arguments: str, **options: Any) -> Job:
        """See `Jobs.run`."""
        ...


@pytest.fixture(scope="session")
def jobs_of_traps() -> Iterator[Jobs]:
    """All jobs of this folder, forked from one interpreter."""
    python = WarmPython()
    jobs = Jobs(python)
    yield jobs
    jobs.clean_up()
    python.close()


@pytest.fixture(scope="module")
def run(jobs_of_traps: Jobs) -> Run:
    """Runs jobs."""

    def of_this_folder(worker: str, ranks: int = 1, *arguments: str, **options: Any) -> Job:
        return jobs_of_traps.run(str(WORKERS / worker), ranks, *arguments, **options)

    return of_this_folder


def pytest_configure() -> None:
    """Let forked ranks find a loopback device for gloo without a name service."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
