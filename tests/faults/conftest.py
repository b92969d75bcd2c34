"""Fixtures of the fault matrix."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.faulty_job import FaultyJob
from tests.support.otlp_receiver import GRPC, OtlpReceiver
from tests.support.warm_python import WarmPython


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    """An interpreter that has imported torch."""
    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture
def start(python: WarmPython, tmp_path: Path) -> Iterator[Callable[..., FaultyJob]]:
    """Starts a job; see `FaultyJob` for its arguments."""
    base = Path(tempfile.mkdtemp(prefix="otel-torchdist-test-", dir="/dev/shm"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, base)
        receiver = stack.enter_context(OtlpReceiver(GRPC))

        def start(*arguments: str, **others: Any) -> FaultyJob:
            job = FaultyJob(python, tmp_path, base / "tapes", receiver, arguments, **others)
            stack.callback(job.kill)
            return job

        yield start
