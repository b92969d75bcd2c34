"""Encodes our spans as OTLP within the SDK's own exporters, which keep their settings, connection and retries.

An operation shares most attributes with thousands of others: names, shapes, call sites. Protobuf guarantees that
merging the encodings of parts gives the whole, so an attribute's bytes are cached and merged into every span that has
it.

Both exporters turn spans into a request by calling a function `encode_spans` in their modules. We replace it with one
that recognizes our batches and passes all others to the SDK's. If another version of an exporter does not call it, only
time is lost: a batch is also a sequence of the SDK's spans.

A receiver may accept a request and reject some of its spans (a quota, a limit on attributes, spans that are too old):
OTLP's partial success. They are lost: the protocol forbids sending them again. The response is read where it arrives:
by a hook of `requests` over HTTP, by a wrapper around the stub's call over gRPC. An exporter in which neither is found
is left unchanged.
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
LONGEST_KEPT: Final = 256
"""In bytes. Longer ones are stacks and the like, which do not recur."""

_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
"""Marks a span as known not to be remote, as the SDK does."""
_UNSET: Final = Status()
_KINDS: Final = {
    SpanKind.INTERNAL: Span.SPAN_KIND_INTERNAL,
    SpanKind.CLIENT: Span.SPAN_KIND_CLIENT,
    SpanKind.SERVER: Span.SPAN_KIND_SERVER,
}
_HASHED_AS_THEY_ARE: Final = frozenset({str, int, bool})
_SPANS: Final = b"\x12"
_TRACE_ID: Final = b"\x0a\x10"
_SPAN_ID: Final = b"\x12\x08"
_PARENT_ID: Final = b"\x22\x08"
_START: Final = 0x39
_END: Final = 0x41
"""Numbers and types of fields, and the length of what is as long in each span, as `trace.proto` has them."""
_TIMES: Final = struct.Struct("<BQBQ")
_DOUBLE: Final = struct.Struct("<d")


class OtlpEncoder:
    """Encodes spans with the same result as the SDK's encoder. Not thread-safe."""

    def __init__(self, resource: Resource) -> None:
        """Encode spans of `resource`."""
        self._frame = _frame(resource)
        self._kept: dict[tuple[object, ...], bytes] = {}
        self._heads: dict[tuple[str, int], bytes] = {}
        self._rests: dict[tuple[str, SpanKind], bytes] = {}

    def encode(self, spans: Sequence[FinishedSpan]) -> ExportTraceServiceRequest:
        """Encode one request.

        Raises:
            TypeError: An attribute has a type that OTLP does not have.
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
        """Encode a span: what differs between any two by hand, because Protobuf's objects would take twice as long."""
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
        """Encode what many spans have in common."""
        is_usual = span.error is None and not span.links and not span.dropped_attributes
        known = self._rests.get((span.name, span.kind)) if is_usual else None
        if known is not None:
            return known
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
        """Encode the part of a span that holds its attributes."""
        kept = self._kept
        for name, value in attributes.items():
            # Numbers tell calls apart and would drive out of the cache what they have in common.
            if type(value) is float:
                parts.append(self._head(name, 0) + _DOUBLE.pack(value))
                continue
            if type(value) is int and 0 <= value < 1 << 63:
                number = varint(value)
                parts.append(self._head(name, len(number)) + number)
                continue
            kind = type(value)
            # The type is part of the key because True == 1, and repr() distinguishes -0.0 from 0.0 and [True] from [1].
            key = (name, value) if kind is str else (name, kind, value if kind in _HASHED_AS_THEY_ARE else repr(value))
            part = kept.get(key)
            if part is None:
                part = Span(attributes=[KeyValue(key=name, value=_any_value(value))]).SerializeToString()
                self._keep(key, part)
            parts.append(part)

    def _head(self, name: str, size: int) -> bytes:
        """Return what comes before a number: a double, or an integer whose encoding has `size` bytes."""
        head = self._heads.get((name, size))
        if head is None:
            value = AnyValue(int_value=1 << 7 * (size - 1)) if size else AnyValue(double_value=1.0)
            whole = Span(attributes=[KeyValue(key=name, value=value)]).SerializeToString()
            if len(self._heads) == MAX_KEPT:
                self._heads.clear()
            head = self._heads[name, size] = whole[: -(size or _DOUBLE.size)]
        return head

    def _keep(self, key: tuple[object, ...], part: bytes) -> None:
        if len(part) > LONGEST_KEPT:
            return
        if len(self._kept) == MAX_KEPT:
            self._kept.clear()
        self._kept[key] = part


def _frame(resource: Resource) -> ExportTraceServiceRequest:
    """Build a request without spans, with resource and scope as the SDK encodes them."""
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
    """Spans for an OTLP exporter; each becomes a span of the SDK only when it is accessed."""

    def __init__(self, spans: Sequence[FinishedSpan], resource: Resource, encoder: OtlpEncoder) -> None:
        """Hold `spans` of `resource`, for which `encoder` was made."""
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
        """Return the request that the SDK's encoder would make."""
        try:
            return self._encoder.encode(self._spans)
        except (TypeError, ValueError, struct.error):
            return encode_spans(self[:])  # leaves out an attribute that cannot be encoded, and logs it


def takes_batches(exporter: SpanExporter) -> bool:
    """Have an exporter's module let each `OtlpBatch` encode itself; returns whether it does."""
    names = vars(sys.modules[type(exporter).__module__])
    if names.get(_ENCODE_SPANS) is encode_spans:
        names[_ENCODE_SPANS] = _encode_batch_or_spans
    return names.get(_ENCODE_SPANS) is _encode_batch_or_spans


def _encode_batch_or_spans(sdk_spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    return sdk_spans.encode() if isinstance(sdk_spans, OtlpBatch) else encode_spans(sdk_spans)


MAX_ANSWER_BYTES: Final = 65_536
"""A longer response is not read: it is not OTLP."""


class PartialSuccess:
    """Collects the responses to one exporter's requests, on the thread that exports.

    Attributes:
        rejected: Spans that the receiver has rejected since `forget`.
        message: Its reason, or its warning if it rejected none; '' for none.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        """Read the responses that `exporter` receives from now on."""
        self.rejected = 0
        self.message = ""
        with guard.guarded("reading what receivers refuse"):
            _follow_grpc(exporter, self._take)
            _follow_http(exporter, self._take)

    def forget(self) -> None:
        """Reset before a request."""
        self.rejected, self.message = 0, ""

    def _take(self, answer: ExportTraceServiceResponse) -> None:
        self.rejected += max(answer.partial_success.rejected_spans, 0)
        self.message = answer.partial_success.error_message or self.message


Take = Callable[[ExportTraceServiceResponse], None]


def _follow_grpc(exporter: Any, take: Take) -> None:
    make_stub, stub = getattr(exporter, "_stub", None), getattr(exporter, "_client", None)
    if make_stub is None or not hasattr(stub, "Export"):
        return

    def followed(channel: Any) -> Any:  # the exporter makes a new stub when the connection is lost
        return _read_by(take, make_stub(channel))

    exporter._stub = followed
    exporter._client = _read_by(take, stub)


def _read_by(take: Take, stub: Any) -> Any:
    export = stub.Export

    def export_and_read(*args: Any, **kwargs: Any) -> Any:
        answer = export(*args, **kwargs)
        with guard.guarded("reading what receivers refuse"):
            if isinstance(answer, ExportTraceServiceResponse):
                take(answer)
        return answer

    stub.Export = export_and_read
    return stub


def _follow_http(exporter: Any, take: Take) -> None:
    transport = getattr(getattr(exporter, "_client", None), "_transport", exporter)  # the exporter itself up to 1.44
    hooks: dict[str, list[object]] = getattr(getattr(transport, "_session", None), "hooks", {})
    if "response" not in hooks:
        return

    def read(response: Any, *args: Any, **kwargs: Any) -> None:
        with guard.guarded("reading what receivers refuse"):
            if response.status_code == 200 and "protobuf" in response.headers.get("Content-Type", ""):
                _parse(response.content, take)

    hooks["response"].append(read)


def _parse(content: bytes, take: Take) -> None:
    if not content or len(content) > MAX_ANSWER_BYTES:
        return
    try:
        take(ExportTraceServiceResponse.FromString(content))
    except DecodeError:
        return
