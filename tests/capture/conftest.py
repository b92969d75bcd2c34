"""Runs the workers beside a test as the ranks of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from otel_torchdist.capture.agreement import peer_discovery as discovery_module
from tests.capture.agreement.announcements import HOST
from tests.support.launch.jobs import Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of


@pytest.fixture(scope="module", params=KERNELS)
def jobs(request: pytest.FixtureRequest, warm_python: WarmPython) -> Iterator[Jobs]:
    """Runs jobs, recorded in Python and natively."""
    jobs = Jobs(warm_python, request.path.parent / "workers", environ=environ_of(request.param))
    yield jobs
    jobs.clean_up()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll more often than in production."""
    monkeypatch.setattr(discovery_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(discovery_module, "LONGEST_PAUSE_S", 0.05)


@pytest.fixture
def store() -> Any:
    """The job's store; ranks get clones of it."""
    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
