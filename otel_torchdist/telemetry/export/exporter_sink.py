"""Sends spans straight to an exporter of the SDK, bypassing tracers and batch processors."""

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
"""Spans per request, the default of the SDK's own processor."""

_STOCK_OTLP: Final = (
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)


class ExporterSink(QueuedSink):
    """Hands spans to an exporter: OTLP, console, file, or any other."""

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
            exporter: Used by the sink's thread only, and shut down with it.
            resource: Where the spans come from.
            name: Name of the exporter in warnings.
            max_spans: How many spans may wait.
            first_pause_s: See `QueuedSink`.
            longest_pause_s: See `QueuedSink`.
        """
        give_exporters_private_random()
        destination = ExporterDestination(exporter, resource, name)
        super().__init__(destination, max_spans, first_pause_s, longest_pause_s)


class ExporterDestination:
    """Sends through an exporter, in the calling thread; see `Destination`."""

    portion = PORTION

    def __init__(self, exporter: SpanExporter, resource: Resource, name: str) -> None:
        """Take ownership of `exporter`; `name` is its name in warnings."""
        self.name = name
        self._exporter = exporter
        self._batch = _batches(exporter, resource)
        self._answer = _answer_to(exporter)
        self._warned_at: float | None = None
        self._complained_at: float | None = None
        self._limit = limiter(environment_limits())
        self._log = LogCapture(exporter)

    def send(self, spans: Sequence[FinishedSpan], urgent: bool) -> int:
        """See `Destination`."""
        answer = self._answer
        if answer is not None:
            answer.forget()
        if self._limit is not None:
            spans = self._limit(spans)
        with self._log as log:
            result = self._exporter.export(self._batch(spans))
        if result is SpanExportResult.FAILURE:
            raise ExportError(with_hint(log.messages[0]) if log.messages else "the exporter gives no reason")
        if log.complaints:
            self._complain(log.complaints)
        if answer is None or not (answer.rejected or answer.message):
            return 0
        self._warn(min(answer.rejected, len(spans)), len(spans), answer.message)
        return min(answer.rejected, len(spans))

    def _warn(self, rejected: int, sent: int, message: str) -> None:
        """Warn at most once an hour, because every further request tends to have the same problem."""
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

    def _complain(self, complaints: Sequence[str]) -> None:
        """Warn at most once an hour: a forged tape can have any number of attributes that cannot be encoded."""
        now = time.monotonic()
        if self._complained_at is not None and now - self._complained_at < WARNING_INTERVAL_S:
            return
        self._complained_at = now
        _logger.warning(
            "spans are exported (%s) without %d of their attributes, the first because: %.500r. Further ones are not "
            "logged for an hour",
            self.name, len(complaints), complaints[0],
        )  # fmt: skip

    def flush(self, timeout_s: float) -> bool:
        """See `Destination`."""
        # Exporters that have nothing to flush may return None.
        return self._exporter.force_flush(int(timeout_s * 1000)) is not False

    def close(self) -> None:
        """See `Destination`."""
        self._exporter.shutdown()


def _answer_to(exporter: SpanExporter) -> PartialSuccess | None:
    """Return what reads a receiver's responses; None for exporters that have none."""
    if type(exporter).__module__ not in _STOCK_OTLP:
        return None
    # Imported late for the same reason as below.
    from otel_torchdist.telemetry.export.otlp import PartialSuccess

    return PartialSuccess(exporter)


def _batches(exporter: SpanExporter, resource: Resource) -> Callable[[Sequence[FinishedSpan]], Sequence[ReadableSpan]]:
    """Return what turns spans into the exporter's input."""
    if type(exporter).__module__ in _STOCK_OTLP:
        # Imported late: it needs protobuf, which those exporters have loaded and others do not need.
        from otel_torchdist.telemetry.export.otlp import OtlpBatch, OtlpEncoder, takes_batches

        if takes_batches(exporter):
            encoder = OtlpEncoder(resource)
            return lambda spans: OtlpBatch(spans, resource, encoder)
    return lambda spans: [readable_span(span, resource) for span in spans]
