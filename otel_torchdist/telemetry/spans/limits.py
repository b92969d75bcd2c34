"""OpenTelemetry's limits for spans, which the SDK's tracers apply and our exporters would bypass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.util.types import AttributeValue

from otel_torchdist.telemetry.spans.model import FinishedSpan

MAX_ATTRIBUTES: Final = 128
MAX_LINKS: Final = 128
"""What OpenTelemetry allows if no limits are set; our spans have fewer."""

_logger = logging.getLogger("otel_torchdist")


def environment_limits() -> SpanLimits:
    """Read `OTEL_ATTRIBUTE_*_LIMIT` and `OTEL_SPAN_*_LIMIT`; if they are invalid, one warning and no limits."""
    try:
        return SpanLimits()
    except ValueError as error:
        _logger.warning("%s: the limits for spans are not applied", error)
        return SpanLimits(**dict.fromkeys(_LIMITS, SpanLimits.UNSET))


def limiter(limits: SpanLimits) -> Callable[[Sequence[FinishedSpan]], Sequence[FinishedSpan]] | None:
    """Return a function that cuts spans to their limits; None if no span of ours can exceed them."""
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


def _shortened(attributes: Mapping[str, AttributeValue], longest: int) -> dict[str, AttributeValue]:
    return {name: _cut(value, longest) for name, value in attributes.items()}


def _cut(value: AttributeValue, longest: int) -> AttributeValue:
    """Cut strings only, also within lists, as the specification requires."""
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
