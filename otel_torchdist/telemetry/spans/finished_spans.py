"""Finished spans, as passed to exporters: complete, with predetermined ids, and each exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

import msgspec
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from otel_torchdist.model.reports.incident import LinkTarget


class FinishedSpan(msgspec.Struct, frozen=True, gc=False):
    """A span that has ended.

    Attributes:
        name: Low-cardinality name.
        trace_id: 128 bits, not 0.
        span_id: 64 bits, not 0; never passed on twice.
        parent_id: Id of a span of the same trace, passed on before or together with this span; None for a root.
        start_ns: Wall clock, integer nanoseconds since the epoch.
        end_ns: Wall clock, later than `start_ns`.
        attributes: See `semconv`.
        error: Description of the error status; None without an error.
        links: Related spans.
        dropped_attributes: Number of attributes left out because of a limit set by the user.
        kind: `CLIENT` or `SERVER` for remote procedure calls, otherwise `INTERNAL`.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    error: str | None = None
    links: tuple[LinkTarget, ...] = ()
    dropped_attributes: int = 0
    kind: SpanKind = SpanKind.INTERNAL


class SpanSink(Protocol):
    """A receiver of finished spans."""

    @property
    def dropped(self) -> int:
        """Number of lost spans, which could not be passed on."""
        ...

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """Accept spans, parents first. Never blocks on I/O and never raises.

        Args:
            spans: Spans that are exported or dropped together.
            urgent: Whether they are stall evidence: sent immediately, before all other spans, and dropped last.
        """
        ...

    def flush(self, timeout_s: float) -> bool:
        """Export the queued spans. Return False on timeout."""
        ...

    def shutdown(self, timeout_s: float) -> None:
        """Flush and stop. Idempotent."""
        ...


MAX_ATTRIBUTES: Final = 128
MAX_LINKS: Final = 128
"""OpenTelemetry's default limits. Our spans have fewer attributes and links."""

_logger = logging.getLogger("otel_torchdist")


def environment_limits() -> SpanLimits:
    """Read `OTEL_ATTRIBUTE_*_LIMIT` and `OTEL_SPAN_*_LIMIT`. If one is invalid, log a warning and apply no limits."""
    try:
        return SpanLimits()
    except ValueError as error:
        _logger.warning("%s: the limits for spans are not applied", error)
        return SpanLimits(**dict.fromkeys(_LIMITS, SpanLimits.UNSET))


def limiter(limits: SpanLimits) -> Callable[[Sequence[FinishedSpan]], Sequence[FinishedSpan]] | None:
    """Return a function that cuts spans to the limits; None if none of our spans can exceed them."""
    longest = limits.max_span_attribute_length
    attributes = MAX_ATTRIBUTES if limits.max_span_attributes is None else limits.max_span_attributes
    links = MAX_LINKS if limits.max_links is None else limits.max_links
    if longest is None and attributes >= MAX_ATTRIBUTES and links >= MAX_LINKS:
        return None

    def limited(span: FinishedSpan) -> FinishedSpan:
        kept = dict(islice(span.attributes.items(), attributes))
        return msgspec.structs.replace(
            span,
            attributes=kept if longest is None else _shortened(kept, longest),
            dropped_attributes=len(span.attributes) - len(kept),
            links=span.links[:links],
        )

    return lambda spans: [limited(span) for span in spans]


_LONGEST_TEXT: Final = 4_096
_LONGEST_LIST: Final = 256


def shortened_span(span: FinishedSpan) -> FinishedSpan:
    """Return a span with long texts and lists cut, for a span too large for any request."""
    attributes = {
        name: value[:_LONGEST_LIST] if isinstance(value, (list, tuple)) else value
        for name, value in span.attributes.items()
    }
    error = None if span.error is None else span.error[:_LONGEST_TEXT]
    return msgspec.structs.replace(span, attributes=_shortened(attributes, _LONGEST_TEXT), error=error)


def _shortened(attributes: Mapping[str, AttributeValue], longest: int) -> dict[str, AttributeValue]:
    return {name: _cut(value, longest) for name, value in attributes.items()}


def _cut(value: AttributeValue, longest: int) -> AttributeValue:
    """Cut strings, also within lists, and no other values, as the specification requires."""
    if isinstance(value, str):
        return value[:longest]
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], str):
        return [str(item)[:longest] for item in value]
    return value


_LIMITS: Final = (
    "max_attributes",
    "max_events",
    "max_links",
    "max_span_attributes",
    "max_event_attributes",
    "max_link_attributes",
    "max_attribute_length",
    "max_span_attribute_length",
)
