"""Sends spans through the user's tracer provider, with our own ids.

The SDK's tracer gets ids from its public `id_generator`. We replace it only on our tracer object. We also replace this
tracer's `sampler`: the provider's sampler has already been called once for the whole step (`provider_sampler`), and
must not drop the evidence of a stall.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    set_span_in_context,
)

from otel_torchdist import guard
from otel_torchdist.telemetry.export.exporters import give_exporters_private_random
from otel_torchdist.telemetry.export.queued_sink import MAX_QUEUED_SPANS, QueuedSink
from otel_torchdist.telemetry.scope import scope
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

PORTION: Final = 256
"""Spans between two flushes: an eighth of the stock batch processor's queue, which is shared with the user's spans."""
FLUSH_TIMEOUT_MS: Final = 30_000
UNFLUSHED_PAUSE_S: Final = 0.1
"""Pause after a portion if the provider has no flush."""
MAX_FOREIGN_PARENTS: Final = 1_024

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def provider_sampler(provider: TracerProvider) -> Sampler:
    """Return the sampler of a provider, to be called once per step; `ALWAYS_ON` if it exposes none."""
    sampler = getattr(provider, "sampler", None)
    return sampler if isinstance(sampler, Sampler) else ALWAYS_ON


class ProviderSink(QueuedSink):
    """A sink that passes spans to a tracer provider, at the provider's export rate.

    The stock batch processor drops spans if its queue is full. So the sink's thread flushes the provider after every
    256 spans, and immediately after stall evidence. A provider other than the SDK's assigns its own span ids: spans
    keep their parents, but the ranks do not share one trace.
    """

    def __init__(self, provider: TracerProvider, max_spans: int = MAX_QUEUED_SPANS) -> None:
        """Use `provider`, which belongs to the user: it is flushed, but never shut down."""
        give_exporters_private_random()
        super().__init__(_Provider(provider), max_spans)


class _PresetIds(IdGenerator):
    """Returns the ids set by the thread before it starts a span."""

    def __init__(self) -> None:
        self._next = threading.local()

    def set_next(self, trace_id: int, span_id: int) -> None:
        self._next.ids = (trace_id, span_id)

    def generate_trace_id(self) -> int:
        return self._next.ids[0]

    def generate_span_id(self) -> int:
        return self._next.ids[1]


class _Provider:
    """A `Destination` that records spans with a provider's tracer, and flushes the provider."""

    name = "tracer provider"
    portion = PORTION

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._force_flush: Callable[[int], object] | None = getattr(provider, "force_flush", None)
        self._closed = threading.Event()
        self._unflushed = 0
        self._foreign_contexts: OrderedDict[int, SpanContext] = OrderedDict()

    def send(self, spans: Sequence[FinishedSpan], urgent: bool) -> int:
        if self._unflushed + len(spans) > PORTION:
            self._flush_provider()
        tracer = self._provider.get_tracer(*scope())
        ids = _preset_ids_of(tracer)
        for span in spans:
            # If one span cannot be created, the portion must not fail: its other spans would be sent again.
            with guard.guarded("tracer provider"):
                self._record(tracer, ids, span)
        self._unflushed += len(spans)
        if urgent:
            self._flush_provider()
        return 0

    def flush(self, timeout_s: float) -> bool:
        self._unflushed = 0
        return self._force_flush is None or self._force_flush(int(timeout_s * 1000)) is not False

    def close(self) -> None:
        self._closed.set()

    def _flush_provider(self) -> None:
        self._unflushed = 0
        if self._force_flush is None:
            self._closed.wait(UNFLUSHED_PAUSE_S)
            return
        with guard.guarded("flushing the tracer provider"):
            self._force_flush(FLUSH_TIMEOUT_MS)

    def _record(self, tracer: Tracer, ids: _PresetIds | None, span: FinishedSpan) -> None:
        if ids is not None:
            ids.set_next(span.trace_id, span.span_id)
        context = Context()
        if span.parent_id is not None:
            parent = self._context(span.trace_id, span.parent_id)
            context = set_span_in_context(NonRecordingSpan(parent), context)
        recorded = tracer.start_span(
            span.name,
            context=context,
            kind=span.kind,
            attributes=span.attributes,
            links=[Link(self._context(link.trace_id, link.span_id)) for link in span.links],
            start_time=span.start_ns,
        )
        if span.error is not None:
            recorded.set_status(Status(StatusCode.ERROR, span.error))
        recorded.end(span.end_ns)
        if ids is None and span.parent_id is None:
            self._foreign_contexts[span.span_id] = recorded.get_span_context()
            if len(self._foreign_contexts) > MAX_FOREIGN_PARENTS:
                self._foreign_contexts.popitem(last=False)

    def _context(self, trace_id: int, span_id: int) -> SpanContext:
        """Return the context of a parent or linked span, with the ids that a foreign tracer gave it, if any."""
        foreign = self._foreign_contexts.get(span_id)
        return foreign or SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)


def _preset_ids_of(tracer: Tracer) -> _PresetIds | None:
    """Make an SDK tracer use our ids and sample all spans; return None for other tracers.

    Whether `get_tracer` returns the same object again depends on the version of the SDK.
    """
    if not isinstance(tracer, SdkTracer):
        return None
    if not isinstance(tracer.id_generator, _PresetIds):
        tracer.id_generator = _PresetIds()
        tracer.sampler = ALWAYS_ON
    return tracer.id_generator
