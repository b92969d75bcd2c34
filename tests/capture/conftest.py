"""Runs the workers beside a test as the ranks of jobs, with both kernels; and what tests of agreement need."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from tests.capture.core.run.announcements import HOST
from tests.support.native.both_kernels import jobs as jobs
from tests.support.native.both_kernels import jobs_of as jobs_of


@pytest.fixture
def store() -> Any:
    """The job's store; ranks get clones of it."""
    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
