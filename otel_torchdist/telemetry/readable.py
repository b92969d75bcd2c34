"""Our spans as the SDK's exporters take them."""

from __future__ import annotations

from typing import Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from otel_torchdist import semconv
from otel_torchdist.telemetry.model import FinishedSpan

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status(StatusCode.UNSET)
_SCOPE: Final = InstrumentationScope(semconv.SCOPE_NAME)


def readable_span(span: FinishedSpan, resource: Resource) -> ReadableSpan:
    """A span as the SDK would have made it.

    Args:
        span: The span.
        resource: Who it comes from.
    """
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id is not None else None,
        resource=resource,
        attributes=_attributes(span) if span.dropped_attributes else span.attributes,
        links=[Link(_context(link.trace_id, link.span_id)) for link in span.links],
        status=_UNSET if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _attributes(span: FinishedSpan) -> BoundedAttributes:
    attributes = BoundedAttributes(attributes=span.attributes)
    attributes.dropped = span.dropped_attributes
    return attributes


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)
