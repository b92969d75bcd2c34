"""What every test starts from: none of the developer's OpenTelemetry settings, and our own errors raised."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL

WITH_PROCESSES: Final = {
    *("agent", "benchmarks", "capture", "cli", "deploy", "e2e", "faults", "gpu", "routes", "stack", "stacks"),
    *("thirdparty", "torchrun", "traps"),
}
WITH_SERVERS: Final = {"stack"}
FOLDERS_THAT_SHARE: Final = {"tests/benchmarks", "tests/routes", "tests/stack", "tests/thirdparty", "tests/traps"}
"""Their fixtures serve the whole folder, and take long."""


def pytest_configure() -> None:
    """Clean the environment before anything is collected; the processes that tests start inherit it."""
    for name in [name for name in os.environ if name.startswith("OTEL_") or name == "TRACEPARENT"]:
        del os.environ[name]
    # A shell's background job ignores it, and so would every process that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says more about the machine's load than about our code.
    hypothesis.settings.register_profile("without deadlines", deadline=None)
    hypothesis.settings.load_profile("without deadlines")
    os.environ[OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL] = "true"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of folders that start jobs, and of those that start servers."""
    for item in items:
        folder = item.nodeid.split("/")[1]
        if folder in WITH_PROCESSES:
            item.add_marker("process")
        if folder in WITH_SERVERS:
            item.add_marker("servers")


class _WithTheirFixtures(LoadScopeScheduling):
    """Has the tests of a file run in one process, and so those of a folder that shares its fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0]
        return folder if folder in FOLDERS_THAT_SHARE else file


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist` is allowed
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Where several processes run tests: what each is given."""
    return _WithTheirFixtures(config, log)
