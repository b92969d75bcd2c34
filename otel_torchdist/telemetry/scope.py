"""The instrumentation scope of our spans, metrics and events."""

from __future__ import annotations

from typing import NamedTuple

from otel_torchdist.package import package_version
from otel_torchdist.telemetry import semconv


class ScopeArguments(NamedTuple):
    """Arguments of `get_tracer`, `get_meter` and `get_logger`, in their order in OpenTelemetry's API.

    Attributes:
        version: Version of the package; None if unknown.
        schema_url: Identifies the names of attributes and metrics.
    """

    name: str
    version: str | None
    schema_url: str


def scope() -> ScopeArguments:
    """Return the scope of everything that we export."""
    return ScopeArguments(semconv.SCOPE_NAME, package_version() or None, semconv.SCHEMA_URL)
