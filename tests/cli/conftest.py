"""Fixtures of the command line's tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.gloo_jobs import GlooJobs
from tests.support.commands.running import Running, kill_processes_of
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of
from tests.support.tapes.directories import memory_directory


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
def start_beside() -> Iterator[Callable[..., Running]]:
    """Starts `otel-torchdist` about a job with arguments; commands still running after the test are killed."""
    started: list[Running] = []

    def start(job: GlooJobs | Path, *arguments: str | Path, **options: Any) -> Running:
        base = job if isinstance(job, Path) else job.base
        started.append(Running(base, *arguments, **options))
        return started[-1]

    yield start
    for running in started:
        running.close()


@pytest.fixture
def start(base: Path, start_beside: Callable[..., Running]) -> Callable[..., Running]:
    """The same about `base`."""
    return functools.partial(start_beside, base)


@pytest.fixture(scope="module", params=["python", pytest.param("native", marks=pytest.mark.thorough)])
def kernel(request: pytest.FixtureRequest) -> str:
    """The kernel that records a module's jobs: `python`, which `make test` has of all, or `native`."""
    return request.param


@contextmanager
def _jobs(
    python: WarmPython, base: Path, folders: pytest.TempPathFactory, of_all: Mapping[str, str]
) -> Iterator[Callable[..., GlooJobs]]:
    started: list[GlooJobs] = []

    def start(deed: str, *, environ: Mapping[str, str] | None = None, **options: Any) -> GlooJobs:
        own = base / f"base-{len(started)}"
        own.mkdir(mode=0o700)
        environ = {**of_all, **(environ or {})}
        started.append(GlooJobs(python, own, folders.mktemp("job"), deed, environ=environ, **options))
        return started[-1]

    yield start
    for jobs in started:
        jobs.close()


@pytest.fixture(scope="module")
def gloo(
    warm_python: WarmPython, module_base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., GlooJobs]]:
    """Starts jobs of real ranks, each with a base directory for tapes."""
    with _jobs(warm_python, module_base, tmp_path_factory, {}) as start:
        yield start


@pytest.fixture(scope="module")
def hung(gloo: Callable[..., GlooJobs]) -> GlooJobs:
    """Four ranks, one of which is late for good."""
    jobs = gloo("is late")
    jobs.await_verdict()
    return jobs


@pytest.fixture(scope="module")
def gloo_by_kernel(
    kernel: str, warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., GlooJobs]]:
    """Starts the same, recorded by a kernel."""
    with _base() as base, _jobs(warm_python, base, tmp_path_factory, environ_of(kernel)) as start:
        yield start
