"""Fixtures of the fault matrix."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.faults.faulty_job import FaultyJob
from tests.support.launch.warm_python import WarmPython
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver
from tests.support.tapes.memory import memory_directory


@pytest.fixture
def start(warm_python: WarmPython, tmp_path: Path) -> Iterator[Callable[..., FaultyJob]]:
    """Starts a job; see `FaultyJob` for its arguments."""
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(memory_directory())
        receiver = stack.enter_context(OtlpReceiver(GRPC))

        def start(*arguments: str, **others: Any) -> FaultyJob:
            job = FaultyJob(warm_python, tmp_path, base / "tapes", receiver, arguments, **others)
            stack.callback(job.kill)
            return job

        yield start
