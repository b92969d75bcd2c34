"""Fixtures of the agent's tests."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.training import Training
from tests.support.otlp_receiver import GRPC, OtlpReceiver


@pytest.fixture
def base() -> Iterator[Path]:
    """A base directory for tapes, in memory."""
    folder = Path(tempfile.mkdtemp(prefix="otel-torchdist-test-", dir="/dev/shm"))
    yield folder / "tapes"
    shutil.rmtree(folder)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """Where spans go."""
    with OtlpReceiver(GRPC) as receiver:
        yield receiver


@pytest.fixture
def train(base: Path, receiver: OtlpReceiver) -> Iterator[Callable[..., Training]]:
    """Starts a job; see `Training` for its arguments."""
    with contextlib.ExitStack() as stack:

        def start(**arguments: Any) -> Training:
            training = Training(base, receiver, **arguments)
            stack.callback(training.close)
            return training

        yield start


@pytest.fixture
def training(train: Callable[..., Training]) -> Training:
    """A job that has been started."""
    return train()
