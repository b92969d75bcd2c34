"""Spans straight to an exporter of the SDK, past tracers and batch processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_torchdist.telemetry.export_hints import with_hint
from otel_torchdist.telemetry.log_capture import LogCapture
from otel_torchdist.telemetry.model import FinishedSpan
from otel_torchdist.telemetry.private_random import give_exporters_private_random
from otel_torchdist.telemetry.queued_sink import MAX_QUEUED_SPANS, ExportError, QueuedSink
from otel_torchdist.telemetry.readable import readable_span
from otel_torchdist.telemetry.span_limits import environment_limits, limiter

PORTION: Final = 512
"""As many spans in a request as the SDK's own processor sends by default."""

_STOCK_OTLP: Final = (
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)


class ExporterSink(QueuedSink):
    """Hands spans to an exporter: OTLP, console, file, or any other."""

    def __init__(
        self, exporter: SpanExporter, resource: Resource, name: str, max_spans: int = MAX_QUEUED_SPANS
    ) -> None:
        """Own `exporter` from now on.

        Args:
            exporter: Used by the sink's thread only, and shut down with it.
            resource: Who the spans come from.
            name: What a warning calls the exporter.
            max_spans: Spans that may wait.
        """
        give_exporters_private_random()
        super().__init__(_Exporter(exporter, resource, name), max_spans)


class _Exporter:
    portion = PORTION

    def __init__(self, exporter: SpanExporter, resource: Resource, name: str) -> None:
        self.name = name
        self._exporter = exporter
        self._batch = _batches(exporter, resource)
        self._limit = limiter(environment_limits())
        self._log = LogCapture(exporter)

    def send(self, spans: Sequence[FinishedSpan], urgent: bool) -> None:
        if self._limit is not None:
            spans = self._limit(spans)
        with self._log as log:
            result = self._exporter.export(self._batch(spans))
        if result is SpanExportResult.FAILURE:
            raise ExportError(with_hint(log.messages[0]) if log.messages else "the exporter gives no reason")

    def flush(self, timeout_s: float) -> bool:
        # Exporters that have nothing to flush may return None.
        return self._exporter.force_flush(int(timeout_s * 1000)) is not False

    def close(self) -> None:
        self._exporter.shutdown()


def _batches(exporter: SpanExporter, resource: Resource) -> Callable[[Sequence[FinishedSpan]], Sequence[ReadableSpan]]:
    """What turns spans into what an exporter takes."""
    if type(exporter).__module__ in _STOCK_OTLP:
        # Imported late: it needs protobuf, which those exporters have loaded and others do without.
        from otel_torchdist.telemetry.otlp_batch import OtlpBatch, takes_batches
        from otel_torchdist.telemetry.otlp_encoder import OtlpEncoder

        if takes_batches(exporter):
            encoder = OtlpEncoder(resource)
            return lambda spans: OtlpBatch(spans, resource, encoder)
    return lambda spans: [readable_span(span, resource) for span in spans]
