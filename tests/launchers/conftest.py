"""Jobs that are started by the commands of their users."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launchers.started import StartedJob
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver

Start = Callable[..., StartedJob]


@pytest.fixture
def start(memory: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a job by a command, with variables as keywords; nothing of it is left after the test."""
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(OtlpReceiver(GRPC))

        def started(*command: str | Path, **environ: str) -> StartedJob:
            job = StartedJob(command, memory, receiver.endpoint, receiver.protocol, environ, tmp_path)
            stack.callback(job.close)
            return job

        yield started
