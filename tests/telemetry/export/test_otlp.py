"""Our own OTLP encoder produces the same as the SDK's, and the SDK's exporters send it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.telemetry.export.exporter_sink import ExporterSink, build_exporter
from otel_torchdist.telemetry.export.exporters import readable_span
from otel_torchdist.telemetry.export.otlp import MAX_CACHED, OtlpBatch, OtlpEncoder, enable_batches
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.support.receivers.otlp_receiver import GRPC, HTTP, OtlpReceiver

RESOURCE = Resource(
    {"service.name": "test", "ranks": [0, 1], "host.name": "node-1"}, schema_url="https://example.org/1"
)
SPAN = FinishedSpan("all_reduce", 1, 2, None, 100, 200, {"torchdist.rank": 3, "torchdist.async": True})
FEW = ("torchdist.rank", "torchdist.operation", "ä")
"""So few names that values of different types occur under the same one."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 2)
numbers = st.floats() | st.sampled_from([0.0, -0.0, 1.0])
values = st.one_of(
    *(texts, st.booleans(), integers, numbers),
    *(st.lists(items, max_size=3) for items in (texts, st.booleans(), integers, numbers)),
    st.lists(texts, max_size=3).map(tuple),
)
span_ids = st.integers(1, 2**64 - 1)
trace_ids = st.integers(1, 2**128 - 1)
times = st.integers(0, 2**64 - 1)


def made(**fields: Any) -> FinishedSpan:
    """A span; Hypothesis cannot resolve the annotations of OpenTelemetry's types."""
    return FinishedSpan(**fields)


spans = st.builds(
    made,
    name=texts,
    trace_id=trace_ids,
    span_id=span_ids,
    parent_id=st.none() | span_ids,
    start_ns=times,
    end_ns=times,
    attributes=st.dictionaries(st.sampled_from(FEW) | texts, values),
    error=st.none() | texts,
    links=st.lists(st.builds(LinkTarget, trace_ids, span_ids), max_size=2).map(tuple),
)


def sdk_request(sent: Sequence[FinishedSpan]) -> Any:
    """The request that the SDK's own encoder makes."""
    return encode_spans([readable_span(span, RESOURCE) for span in sent])


def exporter_for(receiver: OtlpReceiver) -> SpanExporter:
    """The SDK's exporter."""
    if receiver.protocol == GRPC:
        return build_exporter(GrpcExporter, endpoint=receiver.endpoint)
    return build_exporter(HttpExporter, endpoint=f"{receiver.endpoint}/v1/traces")


@given(st.lists(st.lists(spans, min_size=1, max_size=4), min_size=1, max_size=4))
def test_equals_the_sdks_encoding(requests: list[list[FinishedSpan]]) -> None:
    """Byte for byte, for every field and type, also when an encoder has seen the same attributes before."""
    encoder = OtlpEncoder(RESOURCE)
    for sent in requests:
        encoded = encoder.encode(sent).SerializeToString(deterministic=True)
        assert encoded == sdk_request(sent).SerializeToString(deterministic=True)


def test_equal_values_of_different_types_stay_apart() -> None:
    """Python takes True, 1 and 1.0 for equal, and 0.0 and -0.0; what was encoded for one is not used for another."""
    encoder = OtlpEncoder(RESOURCE)
    for value in (True, 1, 1.0, "1", [True], [1], [1.0], ["1"], 0.0, -0.0, False, [0.0], [-0.0]):
        span = FinishedSpan("all_reduce", 1, 2, None, 100, 200, {"torchdist.tag": value})
        assert encoder.encode([span]).SerializeToString() == sdk_request([span]).SerializeToString()


def test_what_is_kept_is_bounded() -> None:
    """Neither many different attributes nor long ones stay in memory."""
    encoder = OtlpEncoder(RESOURCE)
    numbers = count()
    stack = "x" * 20_000

    def encode(spans: int) -> None:
        for _ in range(spans):
            attributes = {"torchdist.sequence": next(numbers), "code.stacktrace": f"{next(numbers)}{stack}"}
            encoder.encode([FinishedSpan("all_reduce", 1, 2, None, 100, 200, attributes)])

    encode(MAX_CACHED - 1)
    tracemalloc.start()
    try:
        encode(2 * MAX_CACHED)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 2_000_000


class Unread(OtlpBatch):
    """Spans that fail a test when they are converted to the SDK's."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("the exporter does not ask our encoder")


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_the_sdks_exporters_send_what_we_encode(protocol: str) -> None:
    """Fails with an SDK version that no longer calls our encoder: exporting would still work, but slowly."""
    with OtlpReceiver(protocol) as receiver:
        exporter = exporter_for(receiver)
        assert enable_batches(exporter)
        encoder = OtlpEncoder(RESOURCE)
        batch = Unread([SPAN], RESOURCE, encoder, [encoder.body(SPAN)])
        assert exporter.export(batch) is SpanExportResult.SUCCESS
        exporter.shutdown()
        [received] = receiver.spans()
    assert (received.name, received.span_id) == ("all_reduce", 2)
    assert received.attributes == {"torchdist.rank": 3, "torchdist.async": True}


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_other_spans_go_through_the_same_exporters_as_before(protocol: str) -> None:
    """The user's own spans go through the same exporters, in a process in which we export too."""
    with OtlpReceiver(protocol) as receiver:
        exporter = exporter_for(receiver)
        assert enable_batches(exporter)
        assert exporter.export([readable_span(SPAN, Resource({"service.name": "user"}))]) is SpanExportResult.SUCCESS
        exporter.shutdown()
        [received] = receiver.spans()
    assert received.resource["service.name"] == "user"


def test_readers_of_a_batch_find_the_sdks_spans() -> None:
    """Spans can be converted, so an exporter that does not know our encoder still exports them."""
    assert not enable_batches(InMemorySpanExporter())
    [batch] = OtlpEncoder(RESOURCE).batches([SPAN, SPAN])
    assert len(batch) == len(batch[:]) == len(list(batch)) == 2
    for found in (batch[0], batch[1:][0], *batch):
        assert isinstance(found, ReadableSpan)
        assert encode_spans([found]) == sdk_request([SPAN])


def test_an_attribute_that_cannot_be_encoded_does_not_take_the_others_along(caplog: pytest.LogCaptureFixture) -> None:
    """Values that cannot be encoded are left out; for any number of spans there is one warning, with a reason."""
    bad = {"code.file.path": "/home/\udcff/train.py", "torchdist.sequence": 1 << 70, "torchdist.rank": 3}
    with OtlpReceiver(GRPC) as receiver:
        sink = ExporterSink(exporter_for(receiver), RESOURCE, "test exporter")
        for first in (3, 13):
            sink.emit([SPAN, *(FinishedSpan("broadcast", 1, first + nth, 2, 100, 200, bad) for nth in range(5))])
            assert sink.flush(10)
        sink.shutdown(5)
        received = receiver.spans()
    assert [span.attributes for span in received] == [dict(SPAN.attributes), *[{"torchdist.rank": 3}] * 5] * 2
    [record] = caplog.records
    assert record.getMessage().startswith(
        "spans are exported (test exporter) without 10 of their attributes, which cannot be encoded. The first: "
        "\"Failed to encode key code.file.path: 'utf-8' codec"
    )
    assert record.exc_info is None
