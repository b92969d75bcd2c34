"""Outputs for spans, metrics and events: the user's providers, the environment's exporters, or a command's endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from opentelemetry._logs import Logger, LoggerProvider, NoOpLoggerProvider, get_logger_provider
from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.sdk._logs import LoggerProvider as SdkLoggerProvider
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_TRACES_PROTOCOL
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import TracerProvider, get_tracer_provider
from opentelemetry.util.types import AttributeValue

from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.node.job.description import JobDescription
from otel_torchdist.system.progress import Advance, unreported
from otel_torchdist.system.this_process.end import can_start_threads
from otel_torchdist.telemetry.export.declared.declaration import Declaration, load_declaration
from otel_torchdist.telemetry.export.declared.exporters import Signal
from otel_torchdist.telemetry.export.environment import (
    environment_links,
    environment_resource,
    environment_sampler,
    environment_sink,
    otlp_endpoint,
    without_password,
)
from otel_torchdist.telemetry.export.exporter_sink import ExporterDestination, build_exporter
from otel_torchdist.telemetry.export.exporters import by_protocol, load_entry_point
from otel_torchdist.telemetry.export.otlp_file import file_exporter
from otel_torchdist.telemetry.export.provider_sink import ProviderSink, provider_sampler
from otel_torchdist.telemetry.export.providers import (
    build_logger_provider_from_environment,
    build_meter_provider_from_environment,
)
from otel_torchdist.telemetry.export.queued_sink import ExportError
from otel_torchdist.telemetry.scope import scope
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan, SpanSink


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of a reader.

    Attributes:
        sink: Receives spans.
        sampler: Called once per step.
        links: Links of every anchor.
        events: Receives stall events.
        meter_provider: Receives metrics; None if they are not pushed.
        serves_metrics: Whether the reader serves `/metrics` itself.
        closers: Called in order at the end of the reader. Each flushes its output.
        resource: Attributes of the resource of all outputs; empty if unknown.
        describes_job: Whether the resource describes the only exported job.
    """

    sink: SpanSink
    sampler: Sampler
    links: tuple[LinkTarget, ...]
    events: Logger
    meter_provider: MeterProvider | None
    serves_metrics: bool
    closers: tuple[Callable[[], object], ...] = ()
    resource: Mapping[str, AttributeValue] = field(default_factory=dict[str, AttributeValue])
    describes_job: bool = False


def outputs_of_providers(
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
) -> Outputs:
    """Build outputs through the user's providers, or the global providers. The user keeps their ownership."""
    tracers = tracer_provider or get_tracer_provider()
    events = (logger_provider or get_logger_provider()).get_logger(*scope())
    return Outputs(
        sink=ProviderSink(tracers),
        sampler=provider_sampler(tracers),
        links=environment_links(),
        events=events,
        meter_provider=meter_provider or get_meter_provider(),
        serves_metrics=False,
        resource=tracers.resource.attributes if isinstance(tracers, SdkTracerProvider) else {},
        describes_job=True,
    )


def outputs_from_environment(resource: Resource | None = None, job: JobDescription | None = None) -> Outputs:
    """Build outputs to the exporters in configuration files or the standard `OTEL_*` variables, and `/metrics`.

    Args:
        resource: Resource of all outputs; if not given, that of files or variables, with the job's attributes.
        job: The only exported job; None for any number of jobs.
    """
    declared = load_declaration()
    if resource is None:
        resource = environment_resource(job, declared.resource() if declared is not None else None)
    meters = loggers = None
    if can_start_threads():  # the SDK's providers need threads; at the end of a job they are not needed
        meters = _meter_provider(declared, resource)
        loggers = _logger_provider(declared, resource)
    if declared is not None and declared.decides(Signal.TRACES):
        spans, sampler = declared.sink(resource), declared.sampler
    else:
        spans, sampler = environment_sink(resource), environment_sampler
    closers = [provider.shutdown for provider in (meters, loggers) if provider is not None]
    return Outputs(
        sink=spans,
        sampler=ALWAYS_OFF if spans.is_empty else sampler(),
        links=environment_links(),
        events=(loggers or NoOpLoggerProvider()).get_logger(*scope()),
        meter_provider=meters,
        serves_metrics=True,
        closers=tuple(closers),
        resource=resource.attributes,
        describes_job=job is not None,
    )


def _meter_provider(declared: Declaration | None, resource: Resource) -> SdkMeterProvider | None:
    if declared is not None and declared.decides(Signal.METRICS):
        return declared.meter_provider(resource)
    return build_meter_provider_from_environment(resource)


def _logger_provider(declared: Declaration | None, resource: Resource) -> SdkLoggerProvider | None:
    if declared is not None and declared.decides(Signal.LOGS):
        return declared.logger_provider(resource)
    return build_logger_provider_from_environment(resource)


_HTTP: Final = "otlp_proto_http"
_TRACES_PATH: Final = "/v1/traces"


class Delivery:
    """The destination of a command's spans, with counts of accepted and rejected spans.

    Attributes:
        name: Name of the destination in messages.
        accepted: Number of accepted spans.
        rejected: Number of rejected spans in accepted requests (OTLP's partial success).
    """

    def __init__(self, exporter: SpanExporter, resource: Resource, name: str) -> None:
        """Take ownership of `exporter`."""
        self.name = name
        self.accepted = 0
        self.rejected = 0
        self._destination = ExporterDestination(exporter, resource, name)

    def send(self, spans: Sequence[FinishedSpan], advance: Advance = unreported) -> None:
        """Send spans in portions, parents first, and close the exporter.

        Only the exporter retries a failed portion, until its own timeout (OTEL_EXPORTER_OTLP_TIMEOUT).

        Args:
            spans: The spans.
            advance: Called with the number of spans of each portion.

        Raises:
            ExportError: A portion was not accepted. Earlier portions were.
        """
        try:
            for first in range(0, len(spans), self._destination.portion):
                portion = spans[first : first + self._destination.portion]
                self._count(len(portion), self._destination.send(portion, urgent=True))
                advance(len(portion))
        except ExportError as error:
            self._count(error.sent, error.rejected)
            raise
        finally:
            self._destination.close()

    def _count(self, sent: int, rejected: int) -> None:
        self.rejected += rejected
        self.accepted += sent - rejected


def otlp_delivery(resource: Resource, endpoint: str = "", setting: str = "") -> Delivery:
    """Return a delivery through OTLP, configured by the OTEL_EXPORTER_OTLP_* variables.

    Args:
        resource: Resource of the spans.
        endpoint: Replaces the endpoint of the variables, unless empty.
        setting: Name of the setting with `endpoint`, for messages.

    Raises:
        ExportError: The exporter cannot be created.
    """
    name = f"{setting} {without_password(endpoint)}" if endpoint else otlp_endpoint()
    kind = by_protocol("otlp", OTEL_EXPORTER_OTLP_TRACES_PROTOCOL)
    try:
        factory = cast("Callable[..., SpanExporter]", load_entry_point("opentelemetry_traces_exporter", kind))
        options = {"endpoint": _for_traces(endpoint, kind)} if endpoint else {}
        exporter = build_exporter(factory, **options)
    except Exception as error:
        raise ExportError(f"the exporter cannot be created: {error}") from error
    return Delivery(exporter, resource, name)


def _for_traces(endpoint: str, kind: str) -> str:
    """Append the path of traces for HTTP, as the exporter does for OTEL_EXPORTER_OTLP_ENDPOINT."""
    if kind != _HTTP or endpoint.endswith(_TRACES_PATH):
        return endpoint
    return endpoint.rstrip("/") + _TRACES_PATH


def file_delivery(resource: Resource, path: Path) -> Delivery:
    """Return a delivery to a file of OTLP JSON lines.

    Raises:
        OSError: The file cannot be opened for writing.
    """
    return Delivery(file_exporter(path), resource, str(path))
