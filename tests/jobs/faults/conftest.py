"""Fixtures of the fault matrix."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.jobs.faults.faulty_job import FaultyJob, faulty_job
from tests.support.launch.warm_python import WarmPython


@pytest.fixture
def start(warm_python: WarmPython) -> Iterator[Callable[..., FaultyJob]]:
    """Starts a job; see `FaultyJob` for its arguments."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, **others: Any) -> FaultyJob:
            return stack.enter_context(faulty_job(warm_python, *arguments, **others))

        yield start
