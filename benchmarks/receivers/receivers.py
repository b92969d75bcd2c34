"""Receivers that count the spans that a benchmark exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.receivers.collector import Collector, collector_binary
from benchmarks.receivers.span_sink import SpanSink

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
"""Value of OTEL_EXPORTER_OTLP_PROTOCOL."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver of spans.

    Attributes:
        name: Name in the report.
        note: Note in the report.
        endpoints: Values for OTEL_EXPORTER_OTLP_ENDPOINT, by protocol.
        received: Returns the number of received spans.
    """

    name: str
    note: str
    endpoints: Mapping[str, str]
    received: Callable[[], int]


@contextmanager
def span_receiver() -> Iterator[Receiver]:
    """Run a real OpenTelemetry Collector if `make stack` has built one, else a Python process."""
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
        note = "An OpenTelemetry Collector on the same machine takes the spans, and reports how many it has accepted."
        yield Receiver("Collector", note, {GRPC: collector.grpc, HTTP: collector.http}, collector.received)
