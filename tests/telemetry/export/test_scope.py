"""Spans, metrics and events name their instrumentation scope: package, its version, and the schema of their names."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_torchdist import package
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.export.exporters import readable_span
from otel_torchdist.telemetry.export.outputs import outputs_of_providers
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.otel import OTelMetrics
from otel_torchdist.telemetry.scope import scope
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

SCOPE = InstrumentationScope("otel_torchdist", version("otel-torchdist"), semconv.SCHEMA_URL)


def test_spans_metrics_and_events_have_one_scope() -> None:
    """Through the user's providers and through exporters of our own."""
    span = readable_span(FinishedSpan("all_reduce", 1, 2, None, 100, 200, {}), Resource({}))
    assert span.instrumentation_scope == SCOPE

    reader = InMemoryMetricReader()
    meters = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    OTelMetrics(NodeMetrics(), meters)
    data = reader.get_metrics_data()
    meters.shutdown()
    assert data is not None
    [scope_metrics] = data.resource_metrics[0].scope_metrics
    assert (scope_metrics.scope, scope_metrics.schema_url) == (SCOPE, semconv.SCHEMA_URL)

    written = InMemoryLogRecordExporter()
    loggers = LoggerProvider(shutdown_on_exit=False)
    loggers.add_log_record_processor(SimpleLogRecordProcessor(written))
    outputs = outputs_of_providers(meter_provider=meters, logger_provider=loggers)
    outputs.events.emit(LogRecord(event_name=semconv.STALL_EVENT))
    [event] = written.get_finished_logs()
    outputs.sink.shutdown(1)
    assert event.instrumentation_scope == SCOPE


def test_package_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied into an application, the package still exports, under a scope without a version."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    package.package_version.cache_clear()
    try:
        assert scope() == ("otel_torchdist", None, semconv.SCHEMA_URL)
    finally:
        package.package_version.cache_clear()
