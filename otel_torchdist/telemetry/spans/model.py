"""Spans as they are handed to exporters: complete, with their own ids, and exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from otel_torchdist.model.incident import LinkTarget


class FinishedSpan(msgspec.Struct, frozen=True, gc=False):
    """A span that has ended.

    Attributes:
        name: Low-cardinality name.
        trace_id: 128 bits, not 0.
        span_id: 64 bits, not 0; never handed over twice.
        parent_id: Span of the same trace that was handed over no later than this one; None for a root.
        start_ns: Wall clock, integer nanoseconds since the epoch.
        end_ns: Wall clock, later than `start_ns`.
        attributes: See `semconv`.
        error: Description of the error status; None if the span went well.
        links: Related spans.
        dropped_attributes: How many attributes were left out because of a limit that the user has set.
        kind: Whether it is one side of a remote procedure call.
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
    """Where finished spans go."""

    @property
    def dropped(self) -> int:
        """Spans that could not be handed on and are lost."""
        ...

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """Take spans, parents first. Never blocks on I/O and never raises.

        Args:
            spans: Spans that are exported or dropped together.
            urgent: Whether they are stall evidence: sent at once, ahead of everything else, and dropped last.
        """
        ...

    def flush(self, timeout_s: float) -> bool:
        """Export what is queued; False if time ran out."""
        ...

    def shutdown(self, timeout_s: float) -> None:
        """Flush and stop; idempotent."""
        ...
