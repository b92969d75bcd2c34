"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.gloo_jobs import GlooJobs
from tests.support.commands.running import Running, kill_processes_of
from tests.support.launch.warm_python import WarmPython
from tests.support.tapes.memory import memory_directory


@contextmanager
def _base() -> Iterator[Path]:
    with memory_directory() as path:
        yield path
        kill_processes_of(path)  # left by a test that failed


@pytest.fixture
def base() -> Iterator[Path]:
    """An empty base directory for tapes."""
    with _base() as path:
        yield path


@pytest.fixture(scope="module")
def module_base() -> Iterator[Path]:
    """An empty base directory for tapes, shared by all tests of a module."""
    with _base() as path:
        yield path


@pytest.fixture
def start(base: Path) -> Iterator[Callable[..., Running]]:
    """Starts `otel-torchdist` with arguments; commands still running after the test are killed."""
    started: list[Running] = []

    def start(*arguments: str | Path, **options: Any) -> Running:
        started.append(Running(base, *arguments, **options))
        return started[-1]

    yield start
    for running in started:
        running.close()


@pytest.fixture(scope="module")
def gloo(
    warm_python: WarmPython, module_base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., GlooJobs]]:
    """Starts jobs of real ranks, whose tapes lie below `module_base`; one kind at a time."""
    started: list[GlooJobs] = []

    def start(deed: str, **options: Any) -> GlooJobs:
        started.append(GlooJobs(warm_python, module_base, tmp_path_factory.mktemp("job"), deed, **options))
        return started[-1]

    yield start
    for jobs in started:
        jobs.close()
