"""Requests stay below the limits of receivers, whatever the size and the number of spans."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.export.exporter_sink import ExporterSink, build_exporter
from otel_torchdist.telemetry.export.otlp import MAX_REQUEST_BYTES, OtlpEncoder
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.judge.stall.test_reporter import Reported
from tests.support.receivers.otlp_receiver import GRPC, HTTP, OtlpReceiver
from tests.support.worlds.fake_world import FakeWorld, group_of

RESOURCE = Resource({"service.name": "test"})
GRPC_LIMIT = 4 << 20
"""Default limit of gRPC's servers, the Collector's included."""


def exporter_for(receiver: OtlpReceiver) -> SpanExporter:
    """The SDK's exporter."""
    if receiver.protocol == GRPC:
        return build_exporter(GrpcExporter, endpoint=receiver.endpoint)
    return build_exporter(HttpExporter, endpoint=f"{receiver.endpoint}/v1/traces")


def stacks(count: int, characters: int) -> list[FinishedSpan]:
    """Spans with a long stack each."""
    return [
        FinishedSpan(
            "rank: absent", 1, number, None, 100, 200, {semconv.CODE_STACKTRACE: f"{number}{'x' * characters}"}
        )
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_long_stacks_of_many_ranks_arrive(protocol: str) -> None:
    """500 spans of 30 kB, which one request could not hold over gRPC, arrive once, in order, in smaller requests."""
    with OtlpReceiver(protocol) as receiver:
        sink = ExporterSink(exporter_for(receiver), RESOURCE, "test exporter")
        sink.emit(stacks(500, 30_000), urgent=True)
        assert sink.flush(30)
        sink.shutdown(5)
        assert [span.span_id for span in receiver.spans()] == list(range(1, 501))
        assert {len(span.attributes[semconv.CODE_STACKTRACE]) for span in receiver.spans()} >= {30_003}
    assert MAX_REQUEST_BYTES / 2 < receiver.largest < GRPC_LIMIT
    assert sink.dropped == 0


def test_span_that_no_receiver_would_accept_is_shortened() -> None:
    """A forged tape's attributes of any length cost the span its long texts and lists, and no other span."""
    attributes = {
        semconv.CODE_STACKTRACE: "x" * (5 << 20),
        semconv.CIRCLE: ["y" * 10_000] * 1_000,
        semconv.RANK: 3,
    }
    huge = FinishedSpan("rank 3: absent", 1, 1_000, None, 100, 200, attributes, "z" * (5 << 20))
    with OtlpReceiver(GRPC) as receiver:
        sink = ExporterSink(exporter_for(receiver), RESOURCE, "test exporter")
        sink.emit([*stacks(2, 10), huge], urgent=True)
        assert sink.flush(30)
        sink.shutdown(5)
        small, _, received = receiver.spans()
    assert len(small.attributes[semconv.CODE_STACKTRACE]) == 11
    assert received.attributes[semconv.RANK] == 3
    assert len(received.attributes[semconv.CODE_STACKTRACE]) == 4_096
    assert [len(text) for text in received.attributes[semconv.CIRCLE]] == [4_096] * 256
    assert received.error == "z" * 4_096


def test_requests_that_were_accepted_are_not_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    """If a later request of a portion fails, only its spans and the following ones are sent again."""
    with OtlpReceiver(GRPC) as receiver:
        exporter = exporter_for(receiver)
        sink = ExporterSink(exporter, RESOURCE, "test exporter", first_pause_s=0.05)
        export, results = exporter.export, iter([True, False])

        def fail_second(spans: object) -> object:
            if next(results, True):
                return export(spans)  # type: ignore[arg-type]
            logging.getLogger(type(exporter).__module__).error("Failed to export: quota")
            return SpanExportResult.FAILURE

        exporter.export = fail_second  # type: ignore[method-assign,assignment]
        sink.emit(stacks(300, 30_000), urgent=True)
        assert sink.flush(30) or sink.flush(30)
        sink.shutdown(5)
        assert [span.span_id for span in receiver.spans()] == list(range(1, 301))
    assert sink.dropped == 0
    assert "Failed to export: quota" in caplog.text


@pytest.mark.thorough
def test_a_stall_in_which_every_rank_differs() -> None:
    """With 512 ranks and as many shapes, each marker stays small and all spans arrive over gRPC."""
    ranks = 512
    world, group = FakeWorld(ranks), group_of(*range(ranks), description="default_pg")
    for rank in world.ranks:
        rank.enter(group, 1.0, shape=(16, rank.rank + 1))
    reported = Reported(world)
    reported.until(15)
    spans = reported.sink.spans
    encoder = OtlpEncoder(RESOURCE)
    assert len(spans) > ranks
    assert max(len(encoder.body(span)) for span in spans) < 4_096
    values = next(
        span.attributes[semconv.MISMATCH_VALUES] for span in spans if semconv.MISMATCH_VALUES in span.attributes
    )
    assert isinstance(values, list)
    assert (len(values), values[-1]) == (65, "448 more")
    with OtlpReceiver(GRPC) as receiver:
        sink = ExporterSink(exporter_for(receiver), RESOURCE, "test exporter")
        sink.emit(spans, urgent=True)
        assert sink.flush(60)
        sink.shutdown(5)
        assert len(receiver.spans()) == len(spans)
    assert receiver.largest < GRPC_LIMIT
