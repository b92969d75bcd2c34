"""Who takes the spans that a benchmark exports, and counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.collector import Collector, collector_binary
from benchmarks.span_sink import SpanSink

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
"""As in OTEL_EXPORTER_OTLP_PROTOCOL."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Somebody who takes spans.

    Attributes:
        name: As the report calls it.
        note: What the report has to say of it.
        endpoints: For OTEL_EXPORTER_OTLP_ENDPOINT, by protocol.
        received: How many spans have come.
    """

    name: str
    note: str
    endpoints: Mapping[str, str]
    received: Callable[[], int]


@contextmanager
def span_receiver() -> Iterator[Receiver]:
    """A real OpenTelemetry Collector where `make stack` has built one, else a process of Python's."""
    binary = collector_binary()
    if binary is None:
        with SpanSink() as sink:
            note = (
                "There is no OpenTelemetry Collector here (`make stack` builds it): spans go to a Python process that "
                "decodes and counts them."
            )
            yield Receiver("a Python process", note, {GRPC: sink.endpoint}, sink.received)
        return
    with Collector(binary) as collector:
        note = "An OpenTelemetry Collector on the same machine takes the spans, and says how many it has accepted."
        yield Receiver("Collector", note, {GRPC: collector.grpc, HTTP: collector.http}, collector.received)
