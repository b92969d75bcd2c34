"""Has the SDK's own OTLP exporters send what our encoder makes: settings, connection and retries remain theirs.

Both exporters turn spans into a request by a function `encode_spans` in their modules. One takes its place that knows
batches of ours and leaves all others to the SDK's. Where an exporter of another version does not ask it, nothing is
lost but time: a batch is a sequence of the SDK's spans too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, overload

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter

from otel_torchdist.telemetry.model import FinishedSpan
from otel_torchdist.telemetry.otlp_encoder import OtlpEncoder
from otel_torchdist.telemetry.readable import readable_span

_ENCODE_SPANS: Final = "encode_spans"


class OtlpBatch(Sequence[ReadableSpan]):
    """Spans on their way to an OTLP exporter; each becomes a span of the SDK only where somebody looks at it."""

    def __init__(self, spans: Sequence[FinishedSpan], resource: Resource, encoder: OtlpEncoder) -> None:
        """Hold `spans`, which come from `resource`, as `encoder` does too."""
        self._spans = spans
        self._resource = resource
        self._encoder = encoder

    def __len__(self) -> int:
        return len(self._spans)

    @overload
    def __getitem__(self, index: int) -> ReadableSpan: ...
    @overload
    def __getitem__(self, index: slice) -> list[ReadableSpan]: ...
    def __getitem__(self, index: int | slice) -> ReadableSpan | list[ReadableSpan]:
        if isinstance(index, slice):
            return [readable_span(span, self._resource) for span in self._spans[index]]
        return readable_span(self._spans[index], self._resource)

    def encode(self) -> ExportTraceServiceRequest:
        """The request that the SDK's encoder would make."""
        try:
            return self._encoder.encode(self._spans)
        except (TypeError, ValueError):
            return encode_spans(self[:])  # leaves out an attribute that cannot be encoded, and logs it


def takes_batches(exporter: SpanExporter) -> bool:
    """Whether an exporter's module, as it is or from now on, has an `OtlpBatch` encode itself."""
    names = vars(sys.modules[type(exporter).__module__])
    if names.get(_ENCODE_SPANS) is encode_spans:
        names[_ENCODE_SPANS] = _encode_batch_or_spans
    return names.get(_ENCODE_SPANS) is _encode_batch_or_spans


def _encode_batch_or_spans(sdk_spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    return sdk_spans.encode() if isinstance(sdk_spans, OtlpBatch) else encode_spans(sdk_spans)
