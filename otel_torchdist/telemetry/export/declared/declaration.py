"""The outputs in a configuration file, and the choice between them and the environment variables."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator, Mapping
from typing import Any, Final

from opentelemetry.environment_variables import OTEL_LOGS_EXPORTER, OTEL_METRICS_EXPORTER, OTEL_TRACES_EXPORTER
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_LOGS_ENDPOINT,
    OTEL_EXPORTER_OTLP_METRICS_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_ON, Sampler

from otel_torchdist.config import DeclaredFile, FileOrigin, declared_files
from otel_torchdist.telemetry.export.declared.exporters import Signal, build_exporter, destination
from otel_torchdist.telemetry.export.declared.package import ConfigurationPackage
from otel_torchdist.telemetry.export.exporter_sink import PORTION, ExporterSink
from otel_torchdist.telemetry.export.exporters import give_exporters_private_random
from otel_torchdist.telemetry.export.providers import (
    EVENTS_DELAY_MS,
    EXPORT_INTERVAL_MS,
    MetricPush,
    default_cardinality_limits,
)
from otel_torchdist.telemetry.export.queued_sink import MAX_QUEUED_SPANS
from otel_torchdist.telemetry.export.sinks import FanOutSink
from otel_torchdist.telemetry.spans.finished_spans import SpanSink

SECTIONS: Final[Mapping[Signal, str]] = {
    Signal.TRACES: "tracer_provider",
    Signal.METRICS: "meter_provider",
    Signal.LOGS: "logger_provider",
}
_OUTPUT_KEYS: Final = frozenset({*SECTIONS.values(), "resource"})
_EXPORTED: Final[Mapping[Signal, str]] = {Signal.TRACES: "spans", Signal.METRICS: "metrics", Signal.LOGS: "events"}
# The generic endpoint is there for spans only: without an exporter of their own, metrics and events are not sent.
_VARIABLES: Final[Mapping[Signal, tuple[str, ...]]] = {
    Signal.TRACES: (OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT),
    Signal.METRICS: (OTEL_METRICS_EXPORTER, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT),
    Signal.LOGS: (OTEL_LOGS_EXPORTER, OTEL_EXPORTER_OTLP_LOGS_ENDPOINT),
}
"""Variables by which a job chooses its own outputs, instead of those in the node's file."""
_DEFAULT_EXPORT_TIMEOUT_MS: Final = 30_000
_LOADER: Final = "opentelemetry.configuration.file._loader"

_logger = logging.getLogger("otel_torchdist")


def load_declaration(environ: Mapping[str, str] | None = None) -> Declaration | None:
    """Return the outputs in OTEL_CONFIG_FILE, or else in the node's file; None if the variables decide.

    A file that cannot be used causes one warning.

    Args:
        environ: The environment variables; None for this process's environment.
    """
    environ = os.environ if environ is None else environ
    for file in declared_files(environ, for_rank=False):
        is_of_job = file.origin is FileOrigin.JOB
        if not is_of_job and (file.problem or not _OUTPUT_KEYS & file.document.keys()):
            continue  # a problem of the node's file has been reported when its settings were read
        try:
            return _declaration(file, environ)
        except Exception as error:
            reason = " ".join(str(error).split())
            _logger.warning("%s: %s: the OTEL_* variables decide where spans and metrics go", file.name, reason)
        if is_of_job:
            return None  # the user has not asked for the node's file
    return None


def _declaration(file: DeclaredFile, environ: Mapping[str, str]) -> Declaration:
    """Read and check a file with OpenTelemetry's package.

    Raises:
        ValueError: The file cannot be used, or the package is not installed.
        Exception: The package's errors.
    """
    if file.problem:
        raise ValueError(file.problem)
    try:
        package = ConfigurationPackage()
    except ImportError as error:
        raise ValueError("it needs opentelemetry-configuration (pip install opentelemetry-configuration)") from error
    with _without_errors_in_log():
        return Declaration(file, package.load_config_file(file.path), package, environ)


@contextlib.contextmanager
def _without_errors_in_log() -> Generator[None, None, None]:
    """Keep the package from logging errors, with tracebacks: it raises them too."""

    def is_no_error(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR

    logger = logging.getLogger(_LOADER)
    logger.addFilter(is_no_error)
    try:
        yield
    finally:
        logger.removeFilter(is_no_error)


class Declaration:
    """The outputs in one configuration file."""

    def __init__(
        self, file: DeclaredFile, config: Any, package: ConfigurationPackage, environ: Mapping[str, str]
    ) -> None:
        """Use a file.

        Args:
            file: The file.
            config: `OpenTelemetryConfiguration` with its content.
            package: Has read it.
            environ: The environment variables.
        """
        self._file = file
        self._config = config
        self._package = package
        self._environ = environ

    def decides(self, signal: Signal) -> bool:
        """Return whether this file decides where a kind of telemetry goes.

        OTEL_CONFIG_FILE does, as the specification requires. The node's file does if it has a section for it, and the
        environment does not choose an exporter.
        """
        if self._file.origin is FileOrigin.JOB:
            return True
        is_chosen = any(self._environ.get(name, "").strip() for name in _VARIABLES[signal])
        return getattr(self._config, SECTIONS[signal]) is not None and not is_chosen

    def resource(self) -> Resource:
        """Build the resource. Variables override the node's file, and are ignored with OTEL_CONFIG_FILE."""
        try:
            resource: Resource = self._package.resource(self._config.resource)
        except Exception as error:
            self._warn("resource", error, "it is left out")
            resource = self._package.resource(None)
        is_of_job = self._file.origin is FileOrigin.JOB
        return resource if is_of_job else resource.merge(OTELResourceDetector().detect())

    def sink(self, resource: Resource) -> FanOutSink:
        """Build a sink for each exporter of spans. An exporter that cannot be built causes one warning."""
        section = self._config.tracer_provider
        if section is None:
            _logger.warning("%s has no tracer_provider: no spans are exported", self._file.name)
            return FanOutSink([])
        limits = self._limits()
        sinks: list[SpanSink] = []
        for processor in section.processors:
            batch = processor.batch
            model = (batch or processor.simple).exporter if batch or processor.simple else None
            exporter = self._built(model, Signal.TRACES)
            if exporter is None:
                continue
            most = max(batch.max_queue_size or 0, MAX_QUEUED_SPANS) if batch else MAX_QUEUED_SPANS
            portion = (batch.max_export_batch_size if batch else None) or PORTION
            name = f"{self._file.name}: {destination(model)}"
            sinks.append(ExporterSink(exporter, resource, name, most, limits=limits, portion=portion))
        return FanOutSink(sinks)

    def sampler(self) -> Sampler:
        """Build the sampler. If that fails, warn once and return the SDK's default."""
        section = self._config.tracer_provider
        if section is None or section.sampler is None:
            return DEFAULT_ON if section is not None else ALWAYS_OFF
        try:
            return self._package.sampler(section.sampler)
        except Exception as error:
            self._warn("tracer_provider.sampler", error, "parent_based with always_on is used")
            return DEFAULT_ON

    def _limits(self) -> SpanLimits:
        limits = self._config.tracer_provider.limits or self._package.models.SpanLimits()
        return self._package.span_limits(limits, self._config.attribute_limits)

    def meter_provider(self, resource: Resource) -> MeterProvider | None:
        """Build the provider that pushes metrics; None without readers. The caller must shut it down.

        Readers for Prometheus are left out, because `/metrics` is always served.
        """
        section = self._config.meter_provider
        readers = [reader for model in (section.readers if section else ()) if (reader := self._reader(model))]
        if not readers:
            return None
        views: list[Any] = []
        for model in section.views or ():
            try:
                views.append(self._package.view(model))
            except Exception as error:
                self._warn("meter_provider.views", error, "this view is left out")
        give_exporters_private_random()
        chosen = section.exemplar_filter or self._package.models.ExemplarFilter.trace_based
        exemplar_filter = self._package.exemplar_filter(chosen)
        return MeterProvider(readers, resource, exemplar_filter, shutdown_on_exit=False, views=views)

    def _reader(self, model: Any) -> MetricReader | None:
        if model.periodic is not None:
            return self._periodic_reader(model.periodic)
        if model.pull is None or model.pull.exporter.prometheus_development is not None:
            return None
        try:
            return self._package.metric_reader(model)
        except Exception as error:
            self._warn("meter_provider.readers.pull", error, "it is left out")
            return None

    def _periodic_reader(self, model: Any) -> MetricReader | None:
        exporter = self._built(model.exporter, Signal.METRICS)
        if exporter is None:
            return None
        limits: Any = self._package.cardinality_limits(model.cardinality_limits) or {}
        interval = EXPORT_INTERVAL_MS if model.interval is None else model.interval
        timeout = _DEFAULT_EXPORT_TIMEOUT_MS if model.timeout is None else model.timeout
        return MetricPush(
            exporter,
            f"{self._file.name}: {destination(model.exporter)}",
            export_interval_millis=interval,
            export_timeout_millis=timeout,
            cardinality_limits=default_cardinality_limits() | limits,
        )

    def logger_provider(self, resource: Resource) -> LoggerProvider | None:
        """Build the provider for events; None without exporters. The caller must shut it down."""
        section = self._config.logger_provider
        exporters: list[tuple[Any, float]] = []
        for processor in section.processors if section else ():
            batch = processor.batch
            model = (batch or processor.simple).exporter if batch or processor.simple else None
            exporter = self._built(model, Signal.LOGS)
            if exporter is not None:
                exporters.append((exporter, (batch.schedule_delay if batch else None) or EVENTS_DELAY_MS))
        if not exporters:
            return None
        give_exporters_private_random()
        limits = section.limits or self._package.models.LogRecordLimits()
        limits = self._package.log_limits(limits, self._config.attribute_limits)
        provider = LoggerProvider(resource=resource, shutdown_on_exit=False, log_record_limits=limits)
        for exporter, delay_ms in exporters:
            provider.add_log_record_processor(BatchLogRecordProcessor(exporter, schedule_delay_millis=delay_ms))
        return provider

    def _built(self, model: Any, signal: Signal) -> Any:
        """Build an exporter; None after a warning if that fails."""
        section, exported = SECTIONS[signal], _EXPORTED[signal]
        if model is None:
            _logger.warning("%s: %s: a processor is neither batch nor simple: it is left out", self._file.name, section)
            return None
        try:
            return build_exporter(model, signal, self._package)
        except Exception as error:  # not installed, a missing certificate, an invalid value, …
            key = f"{section}: {destination(model)}"
            self._warn(key, error, f"no {exported} are sent there")
            return None

    def _warn(self, key: str, error: Exception, consequence: str) -> None:
        reason = " ".join(str(error).split()) or type(error).__name__
        _logger.warning("%s: %s cannot be built (%s): %s", self._file.name, key, reason, consequence)
