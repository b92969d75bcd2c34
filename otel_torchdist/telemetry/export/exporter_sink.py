"""Sends spans directly to an exporter of the SDK, without tracers and batch processors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
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
    from otel_torchdist.telemetry.export.partial_success import PartialSuccess

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
        *,
        limits: SpanLimits | None = None,
        portion: int = PORTION,
    ) -> None:
        """Take ownership of `exporter`.

        Args:
            exporter: Used only by the sink's thread, and shut down with the sink.
            resource: Resource of the spans.
            name: Name of the exporter in warnings.
            max_spans: Upper bound on the queued spans.
            first_pause_s: See `QueuedSink`.
            longest_pause_s: See `QueuedSink`.
            limits: Limits for spans; None for the limits in the environment.
            portion: Spans per request.
        """
        give_exporters_private_random()
        destination = ExporterDestination(exporter, resource, name, limits, portion)
        super().__init__(destination, max_spans, first_pause_s, longest_pause_s)


class ExporterDestination:
    """A `Destination` that sends through an exporter, in the calling thread."""

    def __init__(
        self,
        exporter: SpanExporter,
        resource: Resource,
        name: str,
        limits: SpanLimits | None = None,
        portion: int = PORTION,
    ) -> None:
        """Take ownership of `exporter`. `name` is its name in warnings; see `ExporterSink` for the others."""
        self.name = name
        self.portion = portion
        self._exporter = exporter
        self._batches = _batches(exporter, resource)
        self._partial_success = _partial_success(exporter)
        self._reading = nullcontext if self._partial_success is None else self._partial_success.reading
        self._warned_at: float | None = None
        self._warned_of_attributes_at: float | None = None
        self._limit = limiter(environment_limits() if limits is None else limits)
        self._log = LogCapture(exporter)

    def send(self, spans: Sequence[FinishedSpan], urgent: bool) -> int:
        """See `Destination`. Large spans need several requests."""
        sent = rejected = 0
        with self._log as log:
            for batch in self._batches(spans if self._limit is None else self._limit(spans)):
                log.messages.clear()
                with self._reading():
                    result = self._exporter.export(batch)
                if result is SpanExportResult.FAILURE:
                    reason = with_hint(log.messages[0]) if log.messages else "the exporter gives no reason"
                    raise ExportError(reason, sent, rejected)
                sent += len(batch)
                rejected += self._rejected(len(batch))
        if log.attribute_warnings:
            self._warn_of_attributes(log.attribute_warnings)
        return rejected

    def _rejected(self, sent: int) -> int:
        """Return the number of rejected spans of the last request."""
        partial = self._partial_success
        if partial is None or not (partial.rejected or partial.message):
            return 0
        rejected = min(partial.rejected, sent)
        self._warn_of_response(rejected, sent, partial.message)
        return rejected

    def _warn_of_response(self, rejected: int, sent: int, message: str) -> None:
        """Warn at most once an hour: further requests usually have the same problem."""
        now = time.monotonic()
        if self._warned_at is not None and now - self._warned_at < WARNING_INTERVAL_S:
            return
        self._warned_at = now
        if not rejected:
            _logger.warning("the receiver of spans (%s) warns: %.500r", self.name, message)
            return
        _logger.warning(
            "the receiver of spans (%s) has rejected %d of %d spans of a request that it accepted: %.500r. These spans "
            "are lost, and counted as dropped. Further rejections are not logged for an hour",
            self.name, rejected, sent, message,
        )  # fmt: skip

    def _warn_of_attributes(self, attribute_warnings: Sequence[str]) -> None:
        """Warn at most once an hour: a forged tape may have many attributes that cannot be encoded."""
        now = time.monotonic()
        if self._warned_of_attributes_at is not None and now - self._warned_of_attributes_at < WARNING_INTERVAL_S:
            return
        self._warned_of_attributes_at = now
        _logger.warning(
            "spans are exported (%s) without %d of their attributes, which cannot be encoded. The first: %.500r. "
            "Further attributes are not logged for an hour",
            self.name, len(attribute_warnings), attribute_warnings[0],
        )  # fmt: skip

    def flush(self, timeout_s: float) -> bool:
        """See `Destination`."""
        # Exporters that have nothing to flush may return None.
        return self._exporter.force_flush(int(timeout_s * 1000)) is not False

    def close(self) -> None:
        """See `Destination`."""
        self._exporter.shutdown()


def build_exporter(factory: Callable[..., SpanExporter], **options: Any) -> SpanExporter:
    """Build an exporter from its class or function. Only from an OTLP exporter built here can rejections be read."""
    if factory.__module__ not in _STOCK_OTLP:
        return factory(**options)
    # Imported late: see `_batches`.
    from otel_torchdist.telemetry.export.partial_success import build_reading

    return build_reading(factory, **options)


def _partial_success(exporter: SpanExporter) -> PartialSuccess | None:
    """Return a reader of the receiver's responses; None for exporters other than OTLP."""
    if type(exporter).__module__ not in _STOCK_OTLP:
        return None
    # Imported late: see `_batches`.
    from otel_torchdist.telemetry.export.partial_success import PartialSuccess

    return PartialSuccess()


Batches: TypeAlias = Callable[[Sequence[FinishedSpan]], Iterable[Sequence[ReadableSpan]]]


def _batches(exporter: SpanExporter, resource: Resource) -> Batches:
    """Return a function that turns spans into inputs of the exporter, one for each request."""
    if type(exporter).__module__ in _STOCK_OTLP:
        # Imported late: it needs protobuf, which only these exporters load.
        from otel_torchdist.telemetry.export.otlp import OtlpEncoder, enable_batches

        if enable_batches(exporter):
            return OtlpEncoder(resource).batches
    return lambda spans: ([readable_span(span, resource) for span in spans],)
