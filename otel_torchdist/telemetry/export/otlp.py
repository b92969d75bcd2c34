"""Encodes our spans as OTLP within the SDK's exporters, which keep their settings, connection and retries.

An operation shares most attributes with thousands of other operations: names, shapes, call sites. Protobuf guarantees
that concatenated encodings of parts encode the whole, so the bytes of an attribute are cached and appended to every
span.

Both exporters turn spans into a request with a function `encode_spans` in their modules. We replace it with a function
that recognizes our batches, and passes other spans to the SDK. If an exporter of another version does not call it,
exports are only slower: a batch is also a sequence of the SDK's spans.

Requests are split by their encoded size. A Collector rejects a message of more than 4 MiB over gRPC and a body of more
than 20 MiB over HTTP, and the SDK's exporter drops a body of more than 64 MiB.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, overload

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.telemetry.export.exporters import readable_span
from otel_torchdist.telemetry.protobuf import varint
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan, shortened_span

MAX_REQUEST_BYTES: Final = 3 << 20
"""Upper bound on an encoded request. The rest of gRPC's default limit of 4 MiB is for the resource."""
MAX_CACHED: Final = 4_096
"""Upper bound on the entries of each cache of encoded bytes. A full cache is cleared."""
MAX_CACHED_BYTES: Final = 256
"""Upper bound on the bytes of a cached attribute. Longer attributes, such as stacks, do not recur."""

_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
"""Marks a context as local, as the SDK does."""
_UNSET: Final = Status()
_KINDS: Final = {
    SpanKind.INTERNAL: Span.SPAN_KIND_INTERNAL,
    SpanKind.CLIENT: Span.SPAN_KIND_CLIENT,
    SpanKind.SERVER: Span.SPAN_KIND_SERVER,
}
_HASHED_BY_VALUE: Final = frozenset({str, int, bool})
_SPANS: Final = b"\x12"
_TRACE_ID: Final = b"\x0a\x10"
_SPAN_ID: Final = b"\x12\x08"
_PARENT_ID: Final = b"\x22\x08"
_START: Final = 0x39
_END: Final = 0x41
"""Tags of fields in `trace.proto`: number and type, followed by the constant length of an id."""
_SPAN_FRAME_BYTES: Final = 6
"""Upper bound on the tag and length before an encoded span."""
_TIMES: Final = struct.Struct("<BQBQ")
_DOUBLE: Final = struct.Struct("<d")


class OtlpEncoder:
    """An encoder with the same results as the SDK's. Not thread-safe."""

    def __init__(self, resource: Resource) -> None:
        """Create an encoder for spans of `resource`."""
        self._resource = resource
        self._frame = _frame(resource)
        self._attribute_cache: dict[tuple[object, ...], bytes] = {}
        self._prefix_cache: dict[tuple[str, int], bytes] = {}
        self._shared_field_cache: dict[tuple[str, SpanKind], bytes] = {}

    def encode(self, spans: Sequence[FinishedSpan]) -> ExportTraceServiceRequest:
        """Encode one request of any size."""
        return self.request(list(map(self.body, spans)))

    def request(self, bodies: Sequence[bytes]) -> ExportTraceServiceRequest:
        """Build a request from encoded spans."""
        request = ExportTraceServiceRequest()
        request.CopyFrom(self._frame)
        encoded: list[bytes] = []
        for body in bodies:
            encoded += (_SPANS, varint(len(body)), body)
        request.resource_spans[0].scope_spans[0].MergeFromString(b"".join(encoded))
        return request

    def batches(self, spans: Sequence[FinishedSpan], max_bytes: int = MAX_REQUEST_BYTES) -> Iterator[OtlpBatch]:
        """Yield the spans in batches of at most `max_bytes`. The attributes of a larger span are shortened."""
        first, size = 0, 0
        bodies: list[bytes] = []
        for number, span in enumerate(spans):
            body = self.body(span)
            if len(body) > max_bytes:
                body = self.body(shortened_span(span))
            if bodies and size + len(body) + _SPAN_FRAME_BYTES > max_bytes:
                yield OtlpBatch(spans[first:number], self._resource, self, bodies)
                first, size, bodies = number, 0, []
            bodies.append(body)
            size += len(body) + _SPAN_FRAME_BYTES
        if bodies:
            yield OtlpBatch(spans[first:], self._resource, self, bodies)

    def body(self, span: FinishedSpan) -> bytes:
        """Encode a span. The SDK leaves out attributes that cannot be encoded, and logs them."""
        try:
            return self._span(span)
        except (TypeError, ValueError, struct.error):
            request = encode_spans([readable_span(span, self._resource)])
            return request.resource_spans[0].scope_spans[0].spans[0].SerializeToString()

    def _span(self, span: FinishedSpan) -> bytes:
        """Encode a span. Its unique fields are encoded by hand, twice as fast as by protobuf's objects."""
        parent = b"" if span.parent_id is None else _PARENT_ID + span.parent_id.to_bytes(8, "big")
        parts = [
            _TRACE_ID,
            span.trace_id.to_bytes(16, "big"),
            _SPAN_ID,
            span.span_id.to_bytes(8, "big"),
            parent,
            _TIMES.pack(_START, span.start_ns, _END, span.end_ns),
            self._shared_fields(span),
        ]
        self._add_attributes(span.attributes, parts)
        return b"".join(parts)

    def _shared_fields(self, span: FinishedSpan) -> bytes:
        """Encode the fields shared by many spans."""
        is_usual = span.error is None and not span.links and not span.dropped_attributes
        cached = self._shared_field_cache.get((span.name, span.kind)) if is_usual else None
        if cached is not None:
            return cached
        shared = Span(
            name=span.name,
            kind=_KINDS[span.kind],
            links=[_link(link) for link in span.links],
            status=_UNSET if span.error is None else Status(code=Status.STATUS_CODE_ERROR, message=span.error),
            flags=_LOCAL,
            dropped_attributes_count=span.dropped_attributes,
        ).SerializeToString()
        if is_usual:
            if len(self._shared_field_cache) == MAX_CACHED:
                self._shared_field_cache.clear()
            self._shared_field_cache[span.name, span.kind] = shared
        return shared

    def _add_attributes(self, attributes: Mapping[str, AttributeValue], parts: list[bytes]) -> None:
        """Encode the attributes of a span."""
        cache = self._attribute_cache
        for name, value in attributes.items():
            # Numbers are not cached: they differ between calls, and would evict shared attributes.
            if type(value) is float:
                parts.append(self._prefix_of_number(name, 0) + _DOUBLE.pack(value))
                continue
            if type(value) is int and 0 <= value < 1 << 63:
                number = varint(value)
                parts.append(self._prefix_of_number(name, len(number)) + number)
                continue
            kind = type(value)
            # The type is part of the key because True == 1, and repr() distinguishes -0.0 from 0.0 and [True] from [1].
            key = (name, value) if kind is str else (name, kind, value if kind in _HASHED_BY_VALUE else repr(value))
            part = cache.get(key)
            if part is None:
                part = Span(attributes=[KeyValue(key=name, value=_any_value(value))]).SerializeToString()
                self._cache_attribute(key, part)
            parts.append(part)

    def _prefix_of_number(self, name: str, size: int) -> bytes:
        """Return an attribute's bytes before its number: an integer of `size` encoded bytes, or a double for size 0."""
        prefix = self._prefix_cache.get((name, size))
        if prefix is None:
            value = AnyValue(int_value=1 << 7 * (size - 1)) if size else AnyValue(double_value=1.0)
            whole = Span(attributes=[KeyValue(key=name, value=value)]).SerializeToString()
            if len(self._prefix_cache) == MAX_CACHED:
                self._prefix_cache.clear()
            prefix = self._prefix_cache[name, size] = whole[: -(size or _DOUBLE.size)]
        return prefix

    def _cache_attribute(self, key: tuple[object, ...], part: bytes) -> None:
        if len(part) > MAX_CACHED_BYTES:
            return
        if len(self._attribute_cache) == MAX_CACHED:
            self._attribute_cache.clear()
        self._attribute_cache[key] = part


def _frame(resource: Resource) -> ExportTraceServiceRequest:
    """Build a request without spans, with resource and scope in the SDK's encoding."""
    frame = encode_spans([readable_span(FinishedSpan("", 1, 1, None, 1, 2, {}), resource)])
    frame.resource_spans[0].scope_spans[0].ClearField("spans")
    return frame


def _link(link: LinkTarget) -> Span.Link:
    return Span.Link(trace_id=link.trace_id.to_bytes(16, "big"), span_id=link.span_id.to_bytes(8, "big"), flags=_LOCAL)


def _any_value(value: AttributeValue) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, (list, tuple)):
        return AnyValue(array_value=ArrayValue(values=[_any_value(item) for item in value]))
    raise TypeError(f"not the value of an attribute: {value!r:.100}")


_ENCODE_SPANS: Final = "encode_spans"


class OtlpBatch(Sequence[ReadableSpan]):
    """Spans for an OTLP exporter. They are converted to spans of the SDK only on access."""

    def __init__(
        self, spans: Sequence[FinishedSpan], resource: Resource, encoder: OtlpEncoder, bodies: Sequence[bytes]
    ) -> None:
        """Create a batch of `spans` of `resource`.

        Args:
            spans: The spans.
            resource: Their resource.
            encoder: An encoder for this resource.
            bodies: The spans, encoded by it.
        """
        self._spans = spans
        self._resource = resource
        self._encoder = encoder
        self._bodies = bodies

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
        """Return the batch as a request, equal to the SDK's."""
        return self._encoder.request(self._bodies)


def enable_batches(exporter: SpanExporter) -> bool:
    """Patch an exporter's module so that an `OtlpBatch` encodes itself. Return whether that is possible."""
    names = vars(sys.modules[type(exporter).__module__])
    if names.get(_ENCODE_SPANS) is encode_spans:
        names[_ENCODE_SPANS] = _encode_batch_or_spans
    return names.get(_ENCODE_SPANS) is _encode_batch_or_spans


def _encode_batch_or_spans(sdk_spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    return sdk_spans.encode() if isinstance(sdk_spans, OtlpBatch) else encode_spans(sdk_spans)
