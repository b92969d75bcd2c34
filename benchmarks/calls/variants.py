"""The ways to instrument a call that are compared. Each is installed in a process of its own and stays there."""

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
"""The dispatch key of our kernels."""
FLUSH_MS: Final = 60_000
EVERY_SPAN: Final = 1 << 24
"""Length of a queue that never drops a span, so that each one is paid for."""


class Bare:
    """No instrumentation."""

    def wrap(self, operation: str, message_bytes: int, call: Call) -> Call:
        """An operation as a user of this variant calls it."""
        return call

    def settle(self) -> None:
        """Let background work come to an end, so that it does not disturb others."""


class EmptyKernel(Bare):
    """Python kernels where ours are, which only pass the call on: the minimum cost of any kernel in Python."""

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
    """otel_torchdist's capture and a tape; the tape's reader is in another process."""

    def __init__(self, directory: Path, library: Library | None) -> None:
        directory.mkdir()
        self._capture = Capture(lambda: directory, Config().tape_records, library=library)
        self._capture.install()


class RecordFunction(Bare):
    """PyTorch's own annotation, with no profiler running."""

    def wrap(self, operation: str, message_bytes: int, call: Call) -> Call:
        """The call, and the wait for it, under `record_function`."""
        record_function = torch.profiler.record_function

        def annotated() -> None:
            with record_function(operation):
                call()

        return annotated


class NaiveSpans(Bare):
    """A naive wrapper of ten lines: a span around each call, with four attributes, and a batch processor."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._provider = TracerProvider()
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=EVERY_SPAN))
        self._tracer = self._provider.get_tracer("naive")

    def wrap(self, operation: str, message_bytes: int, call: Call) -> Call:
        """The call, and the wait for it, as a span."""
        start_span = self._tracer.start_as_current_span

        def traced() -> None:
            attributes = {"operation": operation, "rank": 0, "world_size": WORLD_SIZE, "message_bytes": message_bytes}
            with start_span(operation, attributes=attributes):
                call()

        return traced

    def settle(self) -> None:
        """Export what waits in the queue."""
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
