"""Builds the meter and logger providers configured by OpenTelemetry's environment variables.

The SDK's periodic reader, made safe for a training process, sends metrics. Stall events go to the logger.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final, cast

from opentelemetry.environment_variables import OTEL_LOGS_EXPORTER, OTEL_METRICS_EXPORTER
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.metrics import MeterProvider as ApiMeterProvider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_LOGS_PROTOCOL,
    OTEL_EXPORTER_OTLP_METRICS_PROTOCOL,
    OTEL_METRIC_EXPORT_INTERVAL,
)
from opentelemetry.sdk.metrics import (
    Histogram,
    MeterProvider,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
)
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource

from otel_torchdist import guard
from otel_torchdist.telemetry.export.exporters import (
    LogCapture,
    by_protocol,
    give_exporters_private_random,
    load_entry_point,
)

EXPORT_INTERVAL_MS: Final = 10_000
"""Default export interval: the SDK's 60 s are too slow for stalls. `OTEL_METRIC_EXPORT_INTERVAL` overrides it."""
POINTS_PER_REQUEST: Final = 5_000
"""Points per request: a Collector rejects more than 4 MB over gRPC, and a histogram point takes about 500 bytes."""
MAX_ATTRIBUTE_SETS: Final = 20_000
"""Attribute sets per instrument. Restarts of an elastic job would exhaust the SDK's default of 2,000."""

EVENTS_DELAY_MS: Final = 200
"""Longest time that an event waits for others."""

_METRICS_GROUP: Final = "opentelemetry_metrics_exporter"
_NOT_PUSHED: Final = ("", "none", "prometheus")
_INSTRUMENTS: Final = (Histogram, ObservableCounter, ObservableGauge, ObservableUpDownCounter)

_logger = logging.getLogger("otel_torchdist")


def build_meter_provider_from_environment(resource: Resource | None = None) -> MeterProvider | None:
    """Build a provider for the exporters in `OTEL_METRICS_EXPORTER`, which honor every `OTEL_EXPORTER_OTLP_*`.

    If unset, there are no exporters, unlike `otlp` in the specification: many users point `OTEL_EXPORTER_OTLP_ENDPOINT`
    to a Jaeger, which accepts only traces. `prometheus` is ignored, because `/metrics` is always served. An exporter
    that cannot be built causes one warning. The other exporters work.

    Args:
        resource: Resource of the metrics; the SDK's default if not given.

    Returns:
        The provider, which the caller must shut down; None without exporters.
    """
    names = [name.strip() for name in os.environ.get(OTEL_METRICS_EXPORTER, "").split(",")]
    pushed = dict.fromkeys(name for name in names if name.lower() not in _NOT_PUSHED)
    readers = [reader for reader in map(_reader, pushed) if reader is not None]
    if not readers:
        return None
    give_exporters_private_random()
    return MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)


def _reader(name: str) -> MetricReader | None:
    try:
        cls = load_entry_point(_METRICS_GROUP, by_protocol(name, OTEL_EXPORTER_OTLP_METRICS_PROTOCOL))
        factory = cast("Callable[..., MetricReader | MetricExporter]", cls)
        built = factory(**_known_options(factory, max_export_batch_size=POINTS_PER_REQUEST))
        return built if isinstance(built, MetricReader) else _push(built, name)
    except Exception as error:  # not installed, a missing certificate, an invalid timeout, …
        _logger.warning(
            "%s=%.100s: the exporter cannot be created (%s): no metrics are pushed there",
            OTEL_METRICS_EXPORTER,
            name,
            error,
        )
        return None


def _push(exporter: MetricExporter, name: str) -> MetricPush:
    options = _known_options(PeriodicExportingMetricReader, cardinality_limits=default_cardinality_limits())
    if not os.environ.get(OTEL_METRIC_EXPORT_INTERVAL):
        options["export_interval_millis"] = EXPORT_INTERVAL_MS
    return MetricPush(exporter, f"{OTEL_METRICS_EXPORTER}={name}", **options)


def default_cardinality_limits() -> dict[type, int]:
    """Return the number of attribute sets that each kind of instrument may have."""
    return dict.fromkeys(_INSTRUMENTS, MAX_ATTRIBUTE_SETS)


def _known_options(factory: Callable[..., object], **options: Any) -> dict[str, Any]:
    """Return the options supported by this version of a class."""
    parameters = inspect.signature(factory).parameters
    return {name: value for name, value in options.items() if name in parameters}


class MetricPush(PeriodicExportingMetricReader):
    """The SDK's periodic reader, with two differences.

    A dead endpoint causes one warning until it works again. And forked children (DataLoader workers) start no reader:
    it would send stale copies of their parent's metrics.
    """

    def __init__(self, exporter: MetricExporter, name: str, **options: Any) -> None:
        """Start the thread.

        Args:
            exporter: Shut down with this reader.
            name: Its name in warnings.
            options: As in `PeriodicExportingMetricReader`.
        """
        # The SDK leaves its keyword arguments untyped.
        self._export = cast("Callable[..., MetricExportResult]", exporter.export)  # pyright: ignore[reportUnknownMemberType]
        self._name = name
        self._log = LogCapture(exporter)
        self._one_at_a_time = threading.Lock()
        self._failed = False
        super().__init__(exporter, **options)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        with self._one_at_a_time, suppress_instrumentation(), self._log as log:
            try:
                result = self._export(metrics_data, timeout_millis=timeout_millis)
                problem = "" if result is MetricExportResult.SUCCESS else " ".join(log.messages[:1])
            except Exception as error:  # after any exception, the next interval tries again
                result, problem = MetricExportResult.FAILURE, repr(error)
        self._report(result is MetricExportResult.FAILURE, problem)

    def _at_fork_reinit(self) -> None:
        """Do nothing in a child, where the SDK would start its thread."""

    def _report(self, failed: bool, problem: str) -> None:
        was_failed, self._failed = self._failed, failed
        if failed and not was_failed:
            _logger.warning(
                "metrics cannot be exported (%s): %s. Training is not affected. Further attempts, one per interval, "
                "are not logged until one succeeds.",
                self._name,
                problem or "the exporter gives no reason",
            )
        if was_failed and not failed:
            _logger.info("metrics are exported again (%s)", self._name)


_LOGS_GROUP: Final = "opentelemetry_logs_exporter"


def build_logger_provider_from_environment(resource: Resource) -> LoggerProvider | None:
    """Build a provider for the exporters in `OTEL_LOGS_EXPORTER`; return None without exporters.

    If unset, there are no exporters, as for metrics: a Jaeger accepts only traces. The sentence about a stall is always
    written to Python's `logging`.
    """
    names = [name.strip() for name in os.environ.get(OTEL_LOGS_EXPORTER, "").split(",")]
    built = [_event_exporter(name) for name in dict.fromkeys(names) if name.lower() not in ("", "none")]
    exporters = [exporter for exporter in built if exporter is not None]
    if not exporters:
        return None
    give_exporters_private_random()
    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter, schedule_delay_millis=EVENTS_DELAY_MS))
    return provider


def _event_exporter(name: str) -> Any | None:
    try:
        loaded = load_entry_point(_LOGS_GROUP, by_protocol(name, OTEL_EXPORTER_OTLP_LOGS_PROTOCOL))
        return cast("Callable[[], Any]", loaded)()
    except Exception as error:  # not installed, a missing certificate, an invalid timeout, …
        _logger.warning(
            "%s=%.100s: the exporter cannot be created (%s): no events are sent there", OTEL_LOGS_EXPORTER, name, error
        )
        return None


PUSH_TIMEOUT_MS: Final = 10_000


class PromptPush:
    """Makes a meter provider export immediately, between its intervals, on a separate thread."""

    def __init__(self, provider: ApiMeterProvider | None) -> None:
        """Push through `provider`. Without one, or for a provider other than the SDK's, nothing is pushed."""
        self._provider = provider if isinstance(provider, MeterProvider) else None
        self._requested = threading.Event()
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Request a push, and return immediately. All requests during a push cause one more push."""
        if self._provider is None:
            return
        self._requested.set()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="otel-torchdist push", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Python 3.12 starts no thread during shutdown; closing the provider also exports
                return
            self._thread = thread

    def _run(self) -> None:
        while self._provider is not None:
            self._requested.wait()
            self._requested.clear()
            with guard.guarded("pushing metrics"):
                self._provider.force_flush(PUSH_TIMEOUT_MS)
