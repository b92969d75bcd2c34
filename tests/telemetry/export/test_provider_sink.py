"""Spans through the user's tracer provider."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.export.provider_sink import ProviderSink, provider_sampler
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.support.waiting import until

TRACE = 0x11111111111111112222222222222222


def group(first: int, size: int) -> list[FinishedSpan]:
    """An anchor with id `first` and operations under it."""
    anchor = FinishedSpan("step (rank 0)", TRACE, first, None, 100, 900, {}, links=(LinkTarget(7, 8),))
    return [anchor] + [
        FinishedSpan("all_reduce", TRACE, first + n, first, 200, 300, {"torchdist.step": n}, "it hangs")
        for n in range(1, size)
    ]


@pytest.fixture
def sinks() -> Iterator[Callable[[Any], ProviderSink]]:
    """Makes sinks and shuts them down."""
    made: list[ProviderSink] = []

    def make(provider: Any) -> ProviderSink:
        made.append(ProviderSink(provider))
        return made[-1]

    yield make
    for sink in made:
        sink.shutdown(5)


@pytest.fixture
def providers() -> Iterator[Callable[..., TracerProvider]]:
    """Makes providers and shuts them down."""
    made: list[TracerProvider] = []

    def make(**arguments: Any) -> TracerProvider:
        made.append(TracerProvider(shutdown_on_exit=False, **arguments))
        return made[-1]

    yield make
    for provider in made:
        provider.shutdown()


def test_spans_have_our_ids_times_and_links(
    sinks: Callable[[Any], ProviderSink], providers: Callable[..., TracerProvider]
) -> None:
    """The user's exporter receives what was emitted; the user's own tracers keep their ids."""
    exporter = InMemorySpanExporter()
    provider = providers()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    sink = sinks(provider)
    sink.emit(group(1, 3))
    assert sink.flush(10)
    provider.get_tracer("user").start_span("own").end()

    anchor, operation, _, own = exporter.get_finished_spans()
    assert anchor.context and operation.context and own.context and operation.parent
    assert (anchor.name, anchor.parent, anchor.start_time, anchor.end_time) == ("step (rank 0)", None, 100, 900)
    assert (anchor.context.trace_id, anchor.context.span_id) == (TRACE, 1)
    assert [(link.context.trace_id, link.context.span_id) for link in anchor.links] == [(7, 8)]
    assert (operation.context.trace_id, operation.context.span_id, operation.parent.span_id) == (TRACE, 2, 1)
    assert (operation.status.status_code, operation.status.description) == (StatusCode.ERROR, "it hangs")
    assert dict(operation.attributes or {}) == {"torchdist.step": 1}
    assert operation.instrumentation_scope == InstrumentationScope(
        "otel_torchdist", version("otel-torchdist"), semconv.SCHEMA_URL
    )
    assert own.context.trace_id != TRACE


def test_the_stock_batch_processor_loses_nothing(
    sinks: Callable[[Any], ProviderSink], providers: Callable[..., TracerProvider]
) -> None:
    """A burst of 20,000 spans, ten times its queue, arrives whole, in order, and draws no random number."""
    received: list[int] = []

    class Exporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            received.extend(span.context.span_id for span in spans if span.context)
            return SpanExportResult.SUCCESS

    provider = providers()
    provider.add_span_processor(BatchSpanProcessor(Exporter()))
    sink = sinks(provider)
    random.seed(1)
    state = random.getstate()
    for first in range(1, 20_001, 500):
        sink.emit(group(first, 500))
    assert sink.flush(60)
    assert received == list(range(1, 20_001))
    assert sink.dropped == 0
    assert random.getstate() == state


def test_stall_evidence_does_not_wait_in_the_batch_processor(
    sinks: Callable[[Any], ProviderSink], providers: Callable[..., TracerProvider]
) -> None:
    """The processor would hold urgent spans for five seconds; it is flushed after them."""
    exporter = InMemorySpanExporter()
    provider = providers()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
    sink = sinks(provider)
    sink.emit(group(1, 2), urgent=True)
    until(lambda: len(exporter.get_finished_spans()) == 2, 30.0)


def test_a_processor_that_hangs_does_not_hang_the_exit(
    sinks: Callable[[Any], ProviderSink], providers: Callable[..., TracerProvider]
) -> None:
    """The SDK's `force_flush` does not keep to its timeout when the endpoint is slow; ours does."""
    release = threading.Event()

    class Exporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            release.wait(20)
            return SpanExportResult.SUCCESS

    provider = providers()
    provider.add_span_processor(BatchSpanProcessor(Exporter()))
    sink = sinks(provider)
    sink.emit(group(1, 10))
    began = time.perf_counter()
    assert not sink.flush(0.2)
    sink.shutdown(0.2)
    assert time.perf_counter() - began < 3
    release.set()


def test_the_sampler_of_the_provider_is_asked_for_steps_only(
    sinks: Callable[[Any], ProviderSink], providers: Callable[..., TracerProvider]
) -> None:
    """The provider's sampler decides about steps earlier; whatever is emitted, a stall's evidence too, arrives."""
    exporter = InMemorySpanExporter()
    provider = providers(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    sink = sinks(provider)
    sink.emit(group(1, 2))
    assert sink.flush(10)
    provider.get_tracer("user").start_span("own").end()
    assert [span.name for span in exporter.get_finished_spans()] == ["step (rank 0)", "all_reduce"]
    ratio = TraceIdRatioBased(0.5)
    assert provider_sampler(providers(sampler=ratio)) is ratio
    assert provider_sampler(NoOpTracerProvider()) is ALWAYS_ON


class ForeignProvider(trace.TracerProvider):
    """A provider that is not the SDK's: it cannot be given ids, nor be flushed."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, int, int, int]] = []

    def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
        """A tracer that assigns numbers from 1,000 on."""
        return _ForeignTracer(self)


class _ForeignTracer(trace.NoOpTracer):
    def __init__(self, provider: ForeignProvider) -> None:
        self._provider = provider

    def start_span(self, name: str, context: Context | None = None, *args: Any, **kwargs: Any) -> trace.Span:
        parent = trace.get_current_span(context).get_span_context()
        number = 1_000 + len(self._provider.spans)
        trace_id = parent.trace_id or number
        self._provider.spans.append((name, trace_id, number, parent.span_id))
        return trace.NonRecordingSpan(trace.SpanContext(trace_id, number, is_remote=False))


def test_another_kind_of_provider_gets_spans_with_its_own_ids(sinks: Callable[[Any], ProviderSink]) -> None:
    """Spans keep their parents, also across groups, though ranks do not share a trace."""
    provider = ForeignProvider()
    sink = sinks(provider)
    sink.emit(group(1, 2), urgent=True)
    sink.emit([FinishedSpan("all_reduce (in progress)", TRACE, 50, 1, 200, 300, {})], urgent=True)
    assert sink.flush(10)
    assert provider.spans == [
        ("step (rank 0)", 1_000, 1_000, 0),
        ("all_reduce", 1_000, 1_001, 1_000),
        ("all_reduce (in progress)", 1_000, 1_002, 1_000),
    ]


def test_two_sinks_on_one_provider_do_not_mix_their_ids(
    sinks: Callable[[Any], ProviderSink], providers: Callable[..., TracerProvider]
) -> None:
    """Instrumenting again while the old sink still drains: the SDK may give both the same tracer object."""
    exporter = InMemorySpanExporter()
    provider = providers()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    both = [sinks(provider), sinks(provider)]
    for first in range(1, 10_001, 100):
        both[first // 100 % 2].emit(group(first, 100))
    assert [sink.flush(30) for sink in both] == [True, True]
    ids = [span.context.span_id for span in exporter.get_finished_spans() if span.context]
    assert sorted(ids) == list(range(1, 10_001))
