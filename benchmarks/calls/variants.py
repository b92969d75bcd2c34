"""The compared variants of instrumentation. Each is installed in its own process, and stays there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.calls.collectives import Call
from benchmarks.calls.orders import WORLD_SIZE, Conditions, Variant
from otel_torchdist.capture.core.calls.schemas import collective_schemas
from otel_torchdist.capture.session import Capture
from otel_torchdist.config import Config
from otel_torchdist.native.library import Library, find_library

KEY: Final = torch._C.DispatchKey.BackendSelect
"""Dispatch key of our kernels."""
FLUSH_MS: Final = 60_000
EVERY_SPAN: Final = 1 << 24
"""Length of a queue that never drops a span, so that the cost of every span counts."""


class Bare:
    """No instrumentation."""

    def wrap(self, operation: str, message_bytes: int, call: Call) -> Call:
        """Return an operation as a user of this variant calls it."""
        return call

    def settle(self) -> None:
        """Wait until background work has ended, so that it does not disturb other variants."""


class EmptyKernel(Bare):
    """Empty Python kernels in place of ours, which only forward the call: the minimum cost of any Python kernel."""

    def __init__(self) -> None:
        self._library = torch.library.Library("c10d", "IMPL")
        for schema in collective_schemas():
            name = schema.overload._schema.name.partition("::")[2]
            self._library.impl(name, _empty_kernel(schema.overload), KEY.name, with_keyset=True)


def _empty_kernel(overload: Any) -> Callable[..., Any]:
    redispatch = overload._handle.redispatch_boxed

    def kernel(keyset: Any, *args: Any) -> Any:
        return redispatch(keyset.remove(KEY), *args)

    return kernel


class Ours(Bare):
    """otel_torchdist's capture with a tape, which another process reads."""

    def __init__(self, directory: Path, library: Library | None) -> None:
        directory.mkdir()
        self._capture = Capture(lambda: directory, Config().tape_records, library=library)
        self._capture.install()


class RecordFunction(Bare):
    """PyTorch's `record_function`, without a running profiler."""

    def wrap(self, operation: str, message_bytes: int, call: Call) -> Call:
        """Return a call that runs, with its wait, under `record_function`."""
        record_function = torch.profiler.record_function

        def annotated() -> None:
            with record_function(operation):
                call()

        return annotated


class NaiveSpans(Bare):
    """A naive wrapper of ten lines: a span with four attributes around each call, and a batch processor."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._provider = TracerProvider()
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=EVERY_SPAN))
        self._tracer = self._provider.get_tracer("naive")

    def wrap(self, operation: str, message_bytes: int, call: Call) -> Call:
        """Return a call that runs, with its wait, in a span."""
        start_span = self._tracer.start_as_current_span

        def traced() -> None:
            attributes = {"operation": operation, "rank": 0, "world_size": WORLD_SIZE, "message_bytes": message_bytes}
            with start_span(operation, attributes=attributes):
                call()

        return traced

    def settle(self) -> None:
        """Export the queued spans."""
        if not self._provider.force_flush(FLUSH_MS):
            raise TimeoutError(f"spans could not be exported within {FLUSH_MS} ms")


class Nowhere(SpanExporter):
    """An exporter that does nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Discard spans."""
        return SpanExportResult.SUCCESS


def install(variant: Variant, conditions: Conditions) -> Bare:
    """Install a variant in this process, which must not have joined a process group yet."""
    if variant is Variant.EMPTY_KERNEL:
        return EmptyKernel()
    if variant is Variant.PYTHON:
        return Ours(conditions.tapes_of(variant), None)
    if variant is Variant.NATIVE:
        assert conditions.library is not None
        return Ours(conditions.tapes_of(variant), find_library(conditions.library))
    if variant is Variant.RECORD_FUNCTION:
        return RecordFunction()
    if variant is Variant.NAIVE_WITHOUT_EXPORT:
        return NaiveSpans(Nowhere())
    if variant is Variant.NAIVE:
        # gRPC does not survive a fork, so it must not be loaded before.
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return NaiveSpans(OTLPSpanExporter(endpoint=conditions.endpoint, insecure=True))
    return Bare()
