"""Spans straight to an exporter of the SDK, past tracers and batch processors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from otel_torchdist import semconv
from otel_torchdist.telemetry.log_capture import LogCapture
from otel_torchdist.telemetry.model import FinishedSpan
from otel_torchdist.telemetry.private_random import give_exporters_private_random
from otel_torchdist.telemetry.queued_sink import MAX_QUEUED_SPANS, ExportError, QueuedSink

PORTION: Final = 512
"""As many spans in a request as the SDK's own processor sends by default."""

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status(StatusCode.UNSET)


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
        self._resource = resource
        self._log = LogCapture(exporter)

    def send(self, spans: Sequence[FinishedSpan], urgent: bool) -> None:
        with self._log as log:
            result = self._exporter.export([readable_span(span, self._resource) for span in spans])
        if result is SpanExportResult.FAILURE:
            raise ExportError(log.messages[0] if log.messages else "the exporter gives no reason")

    def flush(self, timeout_s: float) -> bool:
        # Exporters that have nothing to flush may return None.
        return self._exporter.force_flush(int(timeout_s * 1000)) is not False

    def close(self) -> None:
        self._exporter.shutdown()


_SCOPE: Final = InstrumentationScope(semconv.SCOPE_NAME)


def readable_span(span: FinishedSpan, resource: Resource) -> ReadableSpan:
    """A span as the SDK's exporters take it."""
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id is not None else None,
        resource=resource,
        attributes=span.attributes,
        links=[Link(_context(link.trace_id, link.span_id)) for link in span.links],
        status=_UNSET if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)
