"""What every test starts from: none of the developer's OpenTelemetry settings, and our own errors raised."""

import os

import pytest

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL


def pytest_configure(config: pytest.Config) -> None:
    """Clean the environment before anything is collected; the processes that tests start inherit it."""
    for name in [name for name in os.environ if name.startswith("OTEL_") or name == "TRACEPARENT"]:
        del os.environ[name]
    os.environ[OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL] = "true"
