"""The real servers, on free ports, and one job whose story all tests read."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.native.ports import free_ports
from deploy.native.servers import stack_binaries
from deploy.native.stack import Stack
from tests.servers.story import Story, live_through
from tests.support.launch.warm_python import WarmPython
from tests.support.tapes.directories import memory_directory


@pytest.fixture(scope="session")
def binaries() -> Path:
    """What `make stack` has built."""
    found = stack_binaries()
    if found is None:
        assert not os.environ.get("CI"), "CI builds the servers with `make stack`"
        pytest.skip("`make stack` has not built Jaeger, Prometheus, Alertmanager and the Collector")
    return found


@pytest.fixture(scope="session")
def tapes() -> Iterator[Path]:
    """A directory in memory for the tapes of all jobs here."""
    with memory_directory() as path:
        yield path


@pytest.fixture(scope="session")
def stack(binaries: Path, tapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The servers, with the same configuration files as in containers."""
    with Stack(binaries, tmp_path_factory.mktemp("stack"), free_ports(), tapes) as running:
        yield running
        running.jaeger.stop(signal.SIGKILL)  # it would take 10 s to end, for which nobody waits


@pytest.fixture(scope="session")
def story(warm_python: WarmPython, stack: Stack, tapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """What the servers showed while a job went through a straggler, a mismatch, a stall and a death."""
    return live_through(warm_python, stack, tapes, tmp_path_factory.mktemp("story"))
