"""Fixtures of the agent's tests."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry._logs import NoOpLogger
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_torchdist.agent.agent import Agent
from otel_torchdist.config import Config
from otel_torchdist.telemetry.export.outputs import Outputs
from tests.agent.training import Training, environment
from tests.support.commands.running import Running
from tests.support.launch.warm_python import WarmPython
from tests.support.ranks.job_ranks import Ranks
from tests.support.receivers.memory_sink import MemorySink
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver

JOB = "job-0123456789abcdef"
STRANGER = 12345
"""Another user."""


def quiet_outputs(serves_metrics: bool = False, sink: MemorySink | None = None) -> Outputs:
    """Outputs that only keep spans in memory."""
    return Outputs(sink or MemorySink(), ALWAYS_ON, (), NoOpLogger("test"), None, serves_metrics)


def give_away(directory: Path, user: int = STRANGER) -> None:
    """Give a directory and everything in it to a user."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


@pytest.fixture
def base(memory: Path) -> Path:
    """A base directory for tapes, in memory."""
    return memory / "tapes"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """Receives the spans."""
    with OtlpReceiver(GRPC) as receiver:
        yield receiver


@pytest.fixture
def reading() -> Iterator[Agent]:
    """An agent that reads nothing yet and exports only to memory."""
    agent = Agent(Config(), quiet_outputs)
    yield agent
    agent.close()


@pytest.fixture
def train(warm_python: WarmPython, base: Path, receiver: OtlpReceiver) -> Iterator[Callable[..., Training]]:
    """Starts a job; see `Training` for its arguments."""
    with contextlib.ExitStack() as stack:

        def start(**arguments: Any) -> Training:
            training = Training(warm_python, base, receiver, **arguments)
            stack.callback(training.close)
            return training

        yield start


@pytest.fixture
def training(train: Callable[..., Training]) -> Training:
    """A job that has been started."""
    return train()


@pytest.fixture
def begin(base: Path) -> Iterator[Callable[..., Ranks]]:
    """Begins a job without torch; see `Ranks` for its arguments."""
    with contextlib.ExitStack() as stack:

        def begin(size: int, **options: int) -> Ranks:
            ranks = Ranks(base / JOB, size, **options)
            stack.callback(ranks.close)
            return ranks

        yield begin


@pytest.fixture
def start(base: Path, receiver: OtlpReceiver) -> Iterator[Callable[..., Running]]:
    """Starts `otel-torchdist` with arguments, and additions to its environment."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str | Path, **environ: str) -> Running:
            running = Running(base, *arguments, environ=environment(base, receiver) | environ)
            stack.callback(running.close)
            return running

        yield start


@pytest.fixture
def agent(base: Path, start: Callable[..., Running]) -> Callable[..., Running]:
    """Starts an agent manually for that job; see `start`."""
    return functools.partial(start, "agent", "--run-dir", base / JOB, "--keep", "0")
