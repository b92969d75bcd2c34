"""Encodes our spans as OTLP within the SDK's exporters, which keep their settings, connection and retries.

An operation shares most attributes with thousands of others: names, shapes, call sites. Protobuf guarantees that
concatenated encodings of parts encode the whole, so the bytes of an attribute are cached and appended to every span.

Both exporters turn spans into a request with a function `encode_spans` in their modules. We replace it with a function
that recognizes our batches, and passes other spans to the SDK. If an exporter of another version does not call it,
exports are only slower: a batch is also a sequence of the SDK's spans.

A receiver may accept a request and reject some of its spans (a quota, a limit on attributes, old spans): OTLP's partial
success. These spans are lost: the protocol forbids sending them again. Responses are read by a hook of `requests` for
HTTP, and by a wrapper around the stub's call for gRPC. An exporter with neither is left unchanged.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, overload

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from otel_torchdist import guard
from otel_torchdist.model.finding import LinkTarget
from otel_torchdist.telemetry.export.exporters import readable_span
from otel_torchdist.telemetry.protobuf import varint
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

MAX_KEPT: Final = 4_096
MAX_KEPT_BYTES: Final = 256
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
_TIMES: Final = struct.Struct("<BQBQ")
_DOUBLE: Final = struct.Struct("<d")


class OtlpEncoder:
    """An encoder with the same results as the SDK's. Not thread-safe."""

    def __init__(self, resource: Resource) -> None:
        """Create an encoder for spans of `resource`."""
        self._frame = _frame(resource)
        self._kept: dict[tuple[object, ...], bytes] = {}
        self._heads: dict[tuple[str, int], bytes] = {}
        self._rests: dict[tuple[str, SpanKind], bytes] = {}

    def encode(self, spans: Sequence[FinishedSpan]) -> ExportTraceServiceRequest:
        """Encode one request.

        Raises:
            TypeError: OTLP does not support the type of an attribute.
            ValueError: An attribute is out of range, or a string is not valid text.
            struct.error: A time is out of range.
        """
        request = ExportTraceServiceRequest()
        request.CopyFrom(self._frame)
        encoded: list[bytes] = []
        for span in spans:
            body = self._span(span)
            encoded += (_SPANS, varint(len(body)), body)
        request.resource_spans[0].scope_spans[0].MergeFromString(b"".join(encoded))
        return request

    def _span(self, span: FinishedSpan) -> bytes:
        """Encode a span, with its unique fields by hand: protobuf's objects would take twice as long."""
        parent = b"" if span.parent_id is None else _PARENT_ID + span.parent_id.to_bytes(8, "big")
        parts = [
            _TRACE_ID,
            span.trace_id.to_bytes(16, "big"),
            _SPAN_ID,
            span.span_id.to_bytes(8, "big"),
            parent,
            _TIMES.pack(_START, span.start_ns, _END, span.end_ns),
            self._rest(span),
        ]
        self._add_attributes(span.attributes, parts)
        return b"".join(parts)

    def _rest(self, span: FinishedSpan) -> bytes:
        """Encode the fields shared by many spans."""
        is_usual = span.error is None and not span.links and not span.dropped_attributes
        cached = self._rests.get((span.name, span.kind)) if is_usual else None
        if cached is not None:
            return cached
        rest = Span(
            name=span.name,
            kind=_KINDS[span.kind],
            links=[_link(link) for link in span.links],
            status=_UNSET if span.error is None else Status(code=Status.STATUS_CODE_ERROR, message=span.error),
            flags=_LOCAL,
            dropped_attributes_count=span.dropped_attributes,
        ).SerializeToString()
        if is_usual:
            if len(self._rests) == MAX_KEPT:
                self._rests.clear()
            self._rests[span.name, span.kind] = rest
        return rest

    def _add_attributes(self, attributes: Mapping[str, AttributeValue], parts: list[bytes]) -> None:
        """Encode the attributes of a span."""
        kept = self._kept
        for name, value in attributes.items():
            # Numbers are not cached: they differ between calls, and would evict shared attributes.
            if type(value) is float:
                parts.append(self._head(name, 0) + _DOUBLE.pack(value))
                continue
            if type(value) is int and 0 <= value < 1 << 63:
                number = varint(value)
                parts.append(self._head(name, len(number)) + number)
                continue
            kind = type(value)
            # The type is part of the key because True == 1, and repr() distinguishes -0.0 from 0.0 and [True] from [1].
            key = (name, value) if kind is str else (name, kind, value if kind in _HASHED_BY_VALUE else repr(value))
            part = kept.get(key)
            if part is None:
                part = Span(attributes=[KeyValue(key=name, value=_any_value(value))]).SerializeToString()
                self._keep(key, part)
            parts.append(part)

    def _head(self, name: str, size: int) -> bytes:
        """Return the bytes before a number: an integer with an encoding of `size` bytes, or a double for size 0."""
        head = self._heads.get((name, size))
        if head is None:
            value = AnyValue(int_value=1 << 7 * (size - 1)) if size else AnyValue(double_value=1.0)
            whole = Span(attributes=[KeyValue(key=name, value=value)]).SerializeToString()
            if len(self._heads) == MAX_KEPT:
                self._heads.clear()
            head = self._heads[name, size] = whole[: -(size or _DOUBLE.size)]
        return head

    def _keep(self, key: tuple[object, ...], part: bytes) -> None:
        if len(part) > MAX_KEPT_BYTES:
            return
        if len(self._kept) == MAX_KEPT:
            self._kept.clear()
        self._kept[key] = part


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
    raise TypeError(f"no attribute: {value!r:.100}")


_ENCODE_SPANS: Final = "encode_spans"


class OtlpBatch(Sequence[ReadableSpan]):
    """Spans for an OTLP exporter. They are converted to spans of the SDK only on access."""

    def __init__(self, spans: Sequence[FinishedSpan], resource: Resource, encoder: OtlpEncoder) -> None:
        """Create a batch of `spans` of `resource`. `encoder` must be for this resource."""
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
        """Return the batch as a request, equal to the SDK's."""
        try:
            return self._encoder.encode(self._spans)
        except (TypeError, ValueError, struct.error):
            return encode_spans(self[:])  # the SDK leaves out attributes that cannot be encoded, and logs them


def takes_batches(exporter: SpanExporter) -> bool:
    """Patch an exporter's module so that an `OtlpBatch` encodes itself. Return whether that is possible."""
    names = vars(sys.modules[type(exporter).__module__])
    if names.get(_ENCODE_SPANS) is encode_spans:
        names[_ENCODE_SPANS] = _encode_batch_or_spans
    return names.get(_ENCODE_SPANS) is _encode_batch_or_spans


def _encode_batch_or_spans(sdk_spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    return sdk_spans.encode() if isinstance(sdk_spans, OtlpBatch) else encode_spans(sdk_spans)


MAX_RESPONSE_BYTES: Final = 65_536
"""Upper bound on a response. A longer response is not OTLP, and is ignored."""


class PartialSuccess:
    """A reader of the responses to one exporter's requests, on the exporting thread.

    Attributes:
        rejected: Number of spans rejected since `forget`.
        message: The receiver's reason, or its warning if it rejected none; '' for none.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        """Read the responses to `exporter` from now on."""
        self.rejected = 0
        self.message = ""
        with guard.guarded("reading rejections of receivers"):
            _follow_grpc(exporter, self._take)
            _follow_http(exporter, self._take)

    def forget(self) -> None:
        """Reset before a request."""
        self.rejected, self.message = 0, ""

    def _take(self, response: ExportTraceServiceResponse) -> None:
        self.rejected += max(response.partial_success.rejected_spans, 0)
        self.message = response.partial_success.error_message or self.message


Take = Callable[[ExportTraceServiceResponse], None]


def _follow_grpc(exporter: Any, take: Take) -> None:
    make_stub, stub = getattr(exporter, "_stub", None), getattr(exporter, "_client", None)
    if make_stub is None or not hasattr(stub, "Export"):
        return

    def make_stub_that_reads(channel: Any) -> Any:  # the exporter creates a new stub after a lost connection
        return _reading_stub(take, make_stub(channel))

    exporter._stub = make_stub_that_reads
    exporter._client = _reading_stub(take, stub)


def _reading_stub(take: Take, stub: Any) -> Any:
    export = stub.Export

    def export_and_read(*args: Any, **kwargs: Any) -> Any:
        response = export(*args, **kwargs)
        with guard.guarded("reading rejections of receivers"):
            if isinstance(response, ExportTraceServiceResponse):
                take(response)
        return response

    stub.Export = export_and_read
    return stub


def _follow_http(exporter: Any, take: Take) -> None:
    transport = getattr(getattr(exporter, "_client", None), "_transport", exporter)  # the exporter itself up to 1.44
    hooks: dict[str, list[object]] = getattr(getattr(transport, "_session", None), "hooks", {})
    if "response" not in hooks:
        return

    def read(response: Any, *args: Any, **kwargs: Any) -> None:
        with guard.guarded("reading rejections of receivers"):
            if response.status_code == 200 and "protobuf" in response.headers.get("Content-Type", ""):
                _parse(response.content, take)

    hooks["response"].append(read)


def _parse(content: bytes, take: Take) -> None:
    if not content or len(content) > MAX_RESPONSE_BYTES:
        return
    try:
        take(ExportTraceServiceResponse.FromString(content))
    except DecodeError:
        return
