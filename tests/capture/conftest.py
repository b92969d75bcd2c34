"""Runs the worker scripts beside a test as ranks of jobs, with both kernels, and provides a job's store."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from otel_torchdist.capture.upstream.symbol import warn_once
from tests.capture.core.run.announcements import HOST
from tests.support.native.both_kernels import jobs as jobs
from tests.support.native.both_kernels import jobs_of as jobs_of


@pytest.fixture(autouse=True)
def fresh_warnings() -> None:
    """Missing symbols of torch are reported once per process; each test is a process of its own in this respect."""
    warn_once.cache_clear()


@pytest.fixture
def store() -> Any:
    """The job's store; ranks get clones of it."""
    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
