"""Fixtures of the command line's tests."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Running, processes_of


@contextmanager
def _base() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="otel-torchdist-test-", dir="/dev/shm"))
    yield path
    for pid in processes_of(path):  # of a test that failed
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)


@pytest.fixture
def base() -> Iterator[Path]:
    """An empty base directory for tapes."""
    with _base() as path:
        yield path


@pytest.fixture(scope="module")
def module_base() -> Iterator[Path]:
    """The same for all tests of a module."""
    with _base() as path:
        yield path


@pytest.fixture
def start(base: Path) -> Iterator[Callable[..., Running]]:
    """Starts `otel-torchdist` with arguments; what still runs after the test is killed."""
    started: list[Running] = []

    def start(*arguments: str | Path, **options: Any) -> Running:
        started.append(Running(base, *arguments, **options))
        return started[-1]

    yield start
    for running in started:
        running.close()
