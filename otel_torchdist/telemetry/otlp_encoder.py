"""Our spans as OTLP, without the SDK's objects in between, and without encoding the same attribute again and again.

An operation shares most attributes with thousands of others: names, shapes, call sites. Protobuf defines that merging
the encodings of parts gives the whole, so an attribute's bytes are kept and merged into every span that has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import AttributeValue

from otel_torchdist.telemetry.model import FinishedSpan, LinkTarget
from otel_torchdist.telemetry.readable import readable_span

MAX_KEPT: Final = 4_096
LONGEST_KEPT: Final = 256
"""Bytes. Longer ones are stacks and the like, which do not come again."""

_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
"""It is known that a span is not remote, as the SDK puts it."""
_UNSET: Final = Status()
_HASHED_AS_THEY_ARE: Final = frozenset({str, int, bool})


class OtlpEncoder:
    """Encodes what the SDK's encoder would, with the same result. Not thread-safe."""

    def __init__(self, resource: Resource) -> None:
        """All spans come from `resource`."""
        self._frame = _frame(resource)
        self._kept: dict[tuple[object, ...], bytes] = {}

    def encode(self, spans: Sequence[FinishedSpan]) -> ExportTraceServiceRequest:
        """One request.

        Raises:
            TypeError: An attribute is none that OTLP knows.
            ValueError: An attribute is out of range, or a text is none.
        """
        request = ExportTraceServiceRequest()
        request.CopyFrom(self._frame)
        add = request.resource_spans[0].scope_spans[0].spans.add
        for span in spans:
            encoded = add(
                trace_id=span.trace_id.to_bytes(16, "big"),
                span_id=span.span_id.to_bytes(8, "big"),
                parent_span_id=b"" if span.parent_id is None else span.parent_id.to_bytes(8, "big"),
                name=span.name,
                kind=Span.SPAN_KIND_INTERNAL,
                start_time_unix_nano=span.start_ns,
                end_time_unix_nano=span.end_ns,
                links=[_link(link) for link in span.links],
                status=_UNSET if span.error is None else Status(code=Status.STATUS_CODE_ERROR, message=span.error),
                flags=_LOCAL,
                dropped_attributes_count=span.dropped_attributes,
            )
            encoded.MergeFromString(self._attributes(span.attributes))
        return request

    def _attributes(self, attributes: Mapping[str, AttributeValue]) -> bytes:
        """The part of a span that holds its attributes."""
        parts: list[bytes] = []
        for name, value in attributes.items():
            # The type belongs to the key because True == 1, and repr() tells -0.0 from 0.0 and [True] from [1].
            kind = type(value)
            key = (name, kind, value if kind in _HASHED_AS_THEY_ARE else repr(value))
            part = self._kept.get(key)
            if part is None:
                part = Span(attributes=[KeyValue(key=name, value=_any_value(value))]).SerializeToString()
                self._keep(key, part)
            parts.append(part)
        return b"".join(parts)

    def _keep(self, key: tuple[object, ...], part: bytes) -> None:
        if len(part) > LONGEST_KEPT:
            return
        if len(self._kept) == MAX_KEPT:
            self._kept.clear()
        self._kept[key] = part


def _frame(resource: Resource) -> ExportTraceServiceRequest:
    """A request without spans; resource and scope as the SDK encodes them."""
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
