"""The meter provider that OpenTelemetry's environment variables ask for."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from typing import Any, Final, cast

from opentelemetry.environment_variables import OTEL_METRICS_EXPORTER
from opentelemetry.sdk.environment_variables import (
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
from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from otel_torchdist.telemetry.exporter_lookup import by_protocol, load_entry_point
from otel_torchdist.telemetry.metric_push import MetricPush
from otel_torchdist.telemetry.private_random import give_exporters_private_random

EXPORT_INTERVAL_MS: Final = 10_000
"""The SDK's 60 s are too slow for stalls; `OTEL_METRIC_EXPORT_INTERVAL` overrules."""
POINTS_PER_REQUEST: Final = 5_000
"""A Collector refuses more than 4 MB over gRPC, and a histogram's point takes some 500 bytes."""
MAX_ATTRIBUTE_SETS: Final = 20_000
"""The SDK's 2,000 for each instrument would be used up by the restarts of an elastic job."""

_METRICS_GROUP: Final = "opentelemetry_metrics_exporter"
_NOT_PUSHED: Final = ("", "none", "prometheus")
_INSTRUMENTS: Final = (Histogram, ObservableCounter, ObservableGauge, ObservableUpDownCounter)

_logger = logging.getLogger("otel_torchdist")


def build_meter_provider_from_environment(resource: Resource | None = None) -> MeterProvider | None:
    """Build a provider for the exporters in `OTEL_METRICS_EXPORTER`, which obey every `OTEL_EXPORTER_OTLP_*`.

    Unset means none, not `otlp` as in the specification: many people point `OTEL_EXPORTER_OTLP_ENDPOINT` at a
    Jaeger, which takes traces only. `prometheus` is ignored here, for `/metrics` is served anyway. An exporter that
    cannot be built is one warning; the others work.

    Args:
        resource: Who the metrics come from; the SDK's default if not given.

    Returns:
        None when there is nothing to push to. The caller shuts the provider down.
    """
    names = [name.strip() for name in os.environ.get(OTEL_METRICS_EXPORTER, "").split(",")]
    wanted = dict.fromkeys(name for name in names if name.lower() not in _NOT_PUSHED)
    readers = [reader for reader in map(_reader, wanted) if reader is not None]
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
    except Exception as error:  # not installed, a certificate that is missing, a timeout that is no number, …
        _logger.warning(
            "%s=%.100s: the exporter cannot be built (%s): no metrics are pushed there",
            OTEL_METRICS_EXPORTER,
            name,
            error,
        )
        return None


def _push(exporter: MetricExporter, name: str) -> MetricPush:
    limits = dict.fromkeys(_INSTRUMENTS, MAX_ATTRIBUTE_SETS)
    options = _known_options(PeriodicExportingMetricReader, cardinality_limits=limits)
    if not os.environ.get(OTEL_METRIC_EXPORT_INTERVAL):
        options["export_interval_millis"] = EXPORT_INTERVAL_MS
    return MetricPush(exporter, f"{OTEL_METRICS_EXPORTER}={name}", **options)


def _known_options(factory: Callable[..., object], **options: Any) -> dict[str, Any]:
    """Those options that this version of a class takes."""
    parameters = inspect.signature(factory).parameters
    return {name: value for name, value in options.items() if name in parameters}
