"""What every test starts from: none of the developer's OpenTelemetry settings, and our own errors raised."""

import os

import pytest

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL

FOLDERS_THAT_SHARE = {"tests/benchmarks", "tests/routes", "tests/stack", "tests/thirdparty", "tests/traps"}
"""Their fixtures serve the whole folder."""


def pytest_configure(config: pytest.Config) -> None:
    """Clean the environment before anything is collected; the processes that tests start inherit it."""
    for name in [name for name in os.environ if name.startswith("OTEL_") or name == "TRACEPARENT"]:
        del os.environ[name]
    os.environ[OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL] = "true"


@pytest.hookimpl(tryfirst=True)  # before xdist looks for the mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process, for what their fixtures start takes long; so too some folders."""
    for item in items:
        folder, _, name = item.nodeid.partition("::")[0].rpartition("/")
        shared = folder if folder in FOLDERS_THAT_SHARE else f"{folder}/{name}"
        item.add_marker(pytest.mark.xdist_group(shared))
