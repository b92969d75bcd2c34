"""Sends a list of spans in the calling thread and counts what has arrived: for commands, which end afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_TRACES_PROTOCOL
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter

from otel_torchdist.telemetry.export.environment import otlp_endpoint, without_password
from otel_torchdist.telemetry.export.exporter_sink import ExporterDestination
from otel_torchdist.telemetry.export.exporters import by_protocol, load_entry_point
from otel_torchdist.telemetry.export.otlp_file import file_exporter
from otel_torchdist.telemetry.export.queued_sink import ExportError
from otel_torchdist.telemetry.spans.model import FinishedSpan

_HTTP: Final = "otlp_proto_http"
_TRACES_PATH: Final = "/v1/traces"


class Delivery:
    """Where spans go, and what has become of them.

    Attributes:
        name: The destination in messages.
        accepted: Spans that it has taken.
        rejected: Spans of accepted requests that it has discarded (OTLP's partial success).
    """

    def __init__(self, exporter: SpanExporter, resource: Resource, name: str) -> None:
        """Take ownership of `exporter`."""
        self.name = name
        self.accepted = 0
        self.rejected = 0
        self._destination = ExporterDestination(exporter, resource, name)

    def send(self, spans: Sequence[FinishedSpan]) -> None:
        """Send spans in portions, parents first, and close the exporter.

        The exporter repeats a portion that failed until its own timeout (OTEL_EXPORTER_OTLP_TIMEOUT), nothing else
        does.

        Raises:
            ExportError: A portion was not accepted; those before it were.
        """
        try:
            for first in range(0, len(spans), self._destination.portion):
                portion = spans[first : first + self._destination.portion]
                rejected = self._destination.send(portion, urgent=True)
                self.rejected += rejected
                self.accepted += len(portion) - rejected
        finally:
            self._destination.close()


def otlp_delivery(resource: Resource, endpoint: str = "", setting: str = "") -> Delivery:
    """Send through OTLP as the OTEL_EXPORTER_OTLP_* variables describe.

    Args:
        resource: Where the spans come from.
        endpoint: Replaces that of the variables, if it is given.
        setting: Where `endpoint` was given, for messages.

    Raises:
        ExportError: The exporter cannot be created.
    """
    name = f"{setting} {without_password(endpoint)}" if endpoint else otlp_endpoint()
    kind = by_protocol("otlp", OTEL_EXPORTER_OTLP_TRACES_PROTOCOL)
    try:
        factory = cast("Callable[..., SpanExporter]", load_entry_point("opentelemetry_traces_exporter", kind))
        exporter = factory(endpoint=_for_traces(endpoint, kind)) if endpoint else factory()
    except Exception as error:
        raise ExportError(f"the exporter cannot be created: {error}") from error
    return Delivery(exporter, resource, name)


def _for_traces(endpoint: str, kind: str) -> str:
    """Append the path of traces for HTTP, as the exporter does with OTEL_EXPORTER_OTLP_ENDPOINT."""
    if kind != _HTTP or endpoint.endswith(_TRACES_PATH):
        return endpoint
    return endpoint.rstrip("/") + _TRACES_PATH


def file_delivery(resource: Resource, path: Path) -> Delivery:
    """Write OTLP JSON lines to a file.

    Raises:
        OSError: It cannot be opened for writing.
    """
    return Delivery(file_exporter(path), resource, str(path))
