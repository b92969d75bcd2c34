"""What all tests of the exchange start from."""

import pytest

from otel_torchdist.telemetry import http_server


@pytest.fixture(autouse=True)
def prompt_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server notices that it should end sooner than in life, for each test ends some."""
    monkeypatch.setattr(http_server, "_POLL_S", 0.02)
