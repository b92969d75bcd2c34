"""Sends spans directly to an exporter of the SDK, without tracers and batch processors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_torchdist.telemetry.export.exporters import (
    LogCapture,
    give_exporters_private_random,
    readable_span,
    with_hint,
)
from otel_torchdist.telemetry.export.queued_sink import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_QUEUED_SPANS,
    WARNING_INTERVAL_S,
    ExportError,
    QueuedSink,
)
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan, environment_limits, limiter

if TYPE_CHECKING:
    from otel_torchdist.telemetry.export.otlp import PartialSuccess

_logger = logging.getLogger("otel_torchdist")

PORTION: Final = 512
"""Spans per request, as in the SDK's batch processor."""

_STOCK_OTLP: Final = (
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)


class ExporterSink(QueuedSink):
    """A sink for any exporter, such as OTLP, console or file."""

    def __init__(
        self,
        exporter: SpanExporter,
        resource: Resource,
        name: str,
        max_spans: int = MAX_QUEUED_SPANS,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        """Take ownership of `exporter`.

        Args:
            exporter: Used only by the sink's thread, and shut down with the sink.
            resource: Resource of the spans.
            name: Name of the exporter in warnings.
            max_spans: Upper bound on the queued spans.
            first_pause_s: See `QueuedSink`.
            longest_pause_s: See `QueuedSink`.
        """
        give_exporters_private_random()
        destination = ExporterDestination(exporter, resource, name)
        super().__init__(destination, max_spans, first_pause_s, longest_pause_s)


class ExporterDestination:
    """A `Destination` that sends through an exporter, in the calling thread."""

    portion = PORTION

    def __init__(self, exporter: SpanExporter, resource: Resource, name: str) -> None:
        """Take ownership of `exporter`. `name` is its name in warnings."""
        self.name = name
        self._exporter = exporter
        self._batch = _batches(exporter, resource)
        self._partial_success = _partial_success(exporter)
        self._warned_at: float | None = None
        self._warned_of_attributes_at: float | None = None
        self._limit = limiter(environment_limits())
        self._log = LogCapture(exporter)

    def send(self, spans: Sequence[FinishedSpan], urgent: bool) -> int:
        """See `Destination`."""
        partial = self._partial_success
        if partial is not None:
            partial.forget()
        if self._limit is not None:
            spans = self._limit(spans)
        with self._log as log:
            result = self._exporter.export(self._batch(spans))
        if result is SpanExportResult.FAILURE:
            raise ExportError(with_hint(log.messages[0]) if log.messages else "the exporter gives no reason")
        if log.attribute_warnings:
            self._warn_of_attributes(log.attribute_warnings)
        if partial is None or not (partial.rejected or partial.message):
            return 0
        self._warn(min(partial.rejected, len(spans)), len(spans), partial.message)
        return min(partial.rejected, len(spans))

    def _warn(self, rejected: int, sent: int, message: str) -> None:
        """Warn at most once an hour: further requests usually have the same problem."""
        now = time.monotonic()
        if self._warned_at is not None and now - self._warned_at < WARNING_INTERVAL_S:
            return
        self._warned_at = now
        if not rejected:
            _logger.warning("the receiver of spans (%s) warns: %.500r", self.name, message)
            return
        _logger.warning(
            "the receiver of spans (%s) has rejected %d of %d spans of a request that it accepted: %.500r. They are "
            "lost; these and all later ones are counted as dropped",
            self.name, rejected, sent, message,
        )  # fmt: skip

    def _warn_of_attributes(self, attribute_warnings: Sequence[str]) -> None:
        """Warn at most once an hour: a forged tape may have many attributes that cannot be encoded."""
        now = time.monotonic()
        if self._warned_of_attributes_at is not None and now - self._warned_of_attributes_at < WARNING_INTERVAL_S:
            return
        self._warned_of_attributes_at = now
        _logger.warning(
            "spans are exported (%s) without %d of their attributes, the first because: %.500r. Further ones are not "
            "logged for an hour",
            self.name, len(attribute_warnings), attribute_warnings[0],
        )  # fmt: skip

    def flush(self, timeout_s: float) -> bool:
        """See `Destination`."""
        # Exporters that have nothing to flush may return None.
        return self._exporter.force_flush(int(timeout_s * 1000)) is not False

    def close(self) -> None:
        """See `Destination`."""
        self._exporter.shutdown()


def _partial_success(exporter: SpanExporter) -> PartialSuccess | None:
    """Return a reader of the receiver's responses; None for exporters other than OTLP."""
    if type(exporter).__module__ not in _STOCK_OTLP:
        return None
    # Imported late: see `_batches`.
    from otel_torchdist.telemetry.export.otlp import PartialSuccess

    return PartialSuccess(exporter)


def _batches(exporter: SpanExporter, resource: Resource) -> Callable[[Sequence[FinishedSpan]], Sequence[ReadableSpan]]:
    """Return a function that turns spans into the exporter's input."""
    if type(exporter).__module__ in _STOCK_OTLP:
        # Imported late: it needs protobuf, which only these exporters load.
        from otel_torchdist.telemetry.export.otlp import OtlpBatch, OtlpEncoder, takes_batches

        if takes_batches(exporter):
            encoder = OtlpEncoder(resource)
            return lambda spans: OtlpBatch(spans, resource, encoder)
    return lambda spans: [readable_span(span, resource) for span in spans]
