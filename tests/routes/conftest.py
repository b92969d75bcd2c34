"""Runs every worker twice, once recorded and once alone, for the first test that needs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.conftest import Jobs
from tests.routes.twins import Twins
from tests.support.warm_python import WarmPython


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """All pairs of runs."""
    python = WarmPython()
    jobs = Jobs(python)
    compiled: Path = tmp_path_factory.mktemp("compiled")
    yield Twins(jobs, compiled)
    jobs.clean_up()
    python.close()


def pytest_configure() -> None:
    """Let forked ranks find a loopback device for gloo without a name service."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
