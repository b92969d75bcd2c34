"""What is logged for a user whose spans cannot be exported."""

import threading

import pytest

from otel_torchdist.telemetry.export.environment import environment_resource, environment_sink
from otel_torchdist.telemetry.export.exporters import with_hint


def test_unknown_errors_are_shown_unchanged() -> None:
    """No hint is guessed, and no full stop is doubled."""
    assert with_hint("the moon is full.. ") == "the moon is full"


def test_known_signs_have_advice() -> None:
    """The real Collector's error messages are in the tests of the stack; these have the same form."""
    assert with_hint("failed: Connection refused.") == "failed: Connection refused (no process listens there)"


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("http://user:secret@host:4317", "OTEL_EXPORTER_OTLP_ENDPOINT=http://host:4317"),
        ("host:4317", "OTEL_EXPORTER_OTLP_ENDPOINT=host:4317"),
        ("", "no OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_endpoint_is_named_without_its_password(endpoint: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning names the endpoint, without its password, because anyone may read it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    sink = environment_sink(environment_resource())
    try:
        names = [thread.name for thread in threading.enumerate()]
        assert f"otel-torchdist OTEL_TRACES_EXPORTER=otlp, {shown}" in names
    finally:
        sink.shutdown(1)
