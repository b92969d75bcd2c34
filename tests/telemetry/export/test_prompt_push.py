"""Metrics are pushed at once when there is news."""

from __future__ import annotations

import threading

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from otel_torchdist.telemetry.export.providers import PromptPush

AN_HOUR_MS = 3_600_000


class SlowExporter(MetricExporter):
    """Exports when it is let.

    Attributes:
        exported: The number of exports so far, raised by each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.exported = threading.Semaphore(0)
        self.gate = threading.Event()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        """Count an export."""
        self.exported.release()
        self.gate.wait(30)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        """Let all exports end."""
        self.gate.set()


def test_news_do_not_wait_for_the_interval() -> None:
    """A request exports at once and does not wait for it; what comes meanwhile causes one more export."""
    exporter = SlowExporter()
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, AN_HOUR_MS)], shutdown_on_exit=False)
    provider.get_meter("test").create_counter("news").add(1)
    push = PromptPush(provider)
    push.request()
    assert exporter.exported.acquire(timeout=20)
    push.request()
    push.request()
    assert not exporter.exported.acquire(blocking=False)
    exporter.gate.set()
    assert exporter.exported.acquire(timeout=20)
    provider.shutdown()


def test_providers_without_exporters() -> None:
    """Nothing happens where nothing is pushed."""
    before = threading.active_count()
    for provider in (None, NoOpMeterProvider()):
        PromptPush(provider).request()
    assert threading.active_count() == before
