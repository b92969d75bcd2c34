"""Spans through the SDK's own exporters to real receivers, and what happens when no receiver answers."""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

import pytest
from opentelemetry import context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.export.exporter_sink import ExporterSink, build_exporter
from otel_torchdist.telemetry.export.queued_sink import MAX_ATTEMPTS
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.support.receivers.otlp_receiver import GRPC, HTTP, OtlpReceiver
from tests.support.waiting import core_waits_s, until, waited_for_a_core_s

RESOURCE = Resource({"service.name": "test", "host.name": "node-1"})
TRACE = 0x11111111111111112222222222222222


def group(first: int, size: int) -> list[FinishedSpan]:
    """An anchor with id `first` and operations under it."""
    anchor = FinishedSpan(
        "step (rank 0)", TRACE, first, None, 10**18, 10**18 + 9_000, {semconv.RANK: 0}, links=(LinkTarget(7, 8),)
    )
    attributes = {
        semconv.OPERATION: "all_reduce",
        semconv.ASYNC: True,
        semconv.SYNC_DURATION: 0.25,
        semconv.TENSOR_SHAPES: ["64x128", "scalar"],
        semconv.SEQUENCE: 12,
    }
    return [anchor] + [
        FinishedSpan("all_reduce", TRACE, first + n, first, 10**18, 10**18 + 5_000, attributes, "it hangs")
        for n in range(1, size)
    ]


def otlp_exporter(receiver: OtlpReceiver, timeout_s: float = 10) -> SpanExporter:
    """The SDK's exporter for a receiver."""
    if receiver.protocol == GRPC:
        return build_exporter(GrpcExporter, endpoint=receiver.endpoint, timeout=timeout_s)
    return build_exporter(HttpExporter, endpoint=f"{receiver.endpoint}/v1/traces", timeout=timeout_s)


class Gate(SpanExporter):
    """An exporter that can be blocked or made to fail.

    Attributes:
        ids: Span ids of what has been accepted, in order.
        open: Cleared while it is blocked.
        works: Whether it accepts spans.
        refused: Id of a span that it never accepts.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.works = True
        self.refused = 0
        self.calls = 0
        self.was_instrumented = False
        self.shut_down = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Accept spans, or fail."""
        self.calls += 1
        self.was_instrumented |= is_instrumentation_enabled()
        self.open.wait(20)
        ids = [span.context.span_id for span in spans if span.context]
        if not self.works or self.refused in ids:
            logging.getLogger(__name__).error("Failed to export: connection refused")
            return SpanExportResult.FAILURE
        self.ids += ids
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Count."""
        self.shut_down += 1


@pytest.fixture
def sinks() -> Iterator[Callable[..., ExporterSink]]:
    """Makes sinks and shuts them down."""
    made: list[ExporterSink] = []

    def make(exporter: SpanExporter, **arguments: float) -> ExporterSink:
        made.append(ExporterSink(exporter, RESOURCE, "test exporter", **arguments))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for sink in made:
        sink.shutdown(5)


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_spans_arrive_complete_and_once(protocol: str, sinks: Callable[..., ExporterSink]) -> None:
    """Every field of a span survives the wire, in the order in which spans were emitted."""
    with OtlpReceiver(protocol) as receiver:
        sink = sinks(otlp_exporter(receiver))
        for first in range(1, 2_001, 500):
            sink.emit(group(first, 500))
        assert sink.flush(20)
        spans = receiver.spans()

    assert [span.span_id for span in spans] == list(range(1, 2_001))
    anchor, operation = spans[:2]
    assert (anchor.name, anchor.parent_id, anchor.error, anchor.links) == ("step (rank 0)", 0, None, ((7, 8),))
    assert (operation.trace_id, operation.parent_id, operation.error) == (TRACE, 1, "it hangs")
    assert (operation.start_ns, operation.end_ns) == (10**18, 10**18 + 5_000)
    assert operation.attributes == {
        "torchdist.operation": "all_reduce",
        "torchdist.async": True,
        "torchdist.sync.duration": 0.25,
        "torchdist.tensor.shapes": ["64x128", "scalar"],
        "torchdist.sequence": 12,
    }
    assert operation.resource == {"service.name": "test", "host.name": "node-1"}
    assert operation.scope == ("otel_torchdist", version("otel-torchdist"), semconv.SCHEMA_URL)
    assert sink.dropped == 0


@pytest.mark.parametrize("protocol", [GRPC, pytest.param(HTTP, marks=pytest.mark.thorough)])
def test_a_dead_endpoint_is_one_warning_and_no_wait(
    protocol: str, sinks: Callable[..., ExporterSink], caplog: pytest.LogCaptureFixture
) -> None:
    """Emitting stays quick, memory bounded, the log quiet, and training's random numbers untouched."""
    receiver = OtlpReceiver(protocol)
    receiver.pause()
    random.seed(1)
    state = random.getstate()
    sink = sinks(otlp_exporter(receiver, timeout_s=3), max_spans=1_000)
    slowest = 0.0
    for first in range(1, 20_001, 100):
        began = time.perf_counter()
        sink.emit(group(first, 100))
        slowest = max(slowest, time.perf_counter() - began)
    until(lambda: len(caplog.records) > 0)
    assert not sink.flush(5)
    assert slowest < 1.5  # waiting for the exporter would take 3 s
    assert sink.dropped >= 19_000
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "spans cannot be exported (test exporter)" in record.getMessage()
    assert random.getstate() == state
    began = time.perf_counter()
    sink.shutdown(2)
    assert time.perf_counter() - began < 4
    receiver.stop()
    assert sink.dropped == 20_000
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_live_endpoint_leaves_the_random_numbers_of_the_training_alone(sinks: Callable[..., ExporterSink]) -> None:
    """The SDK's HTTP exporter draws a backoff for every request; it must not draw it from the training's generator."""
    with OtlpReceiver(HTTP) as receiver:
        random.seed(1)
        state = random.getstate()
        sink = sinks(otlp_exporter(receiver))
        sink.emit(group(1, 10))
        assert sink.flush(10)
        assert len(receiver.spans()) == 10
        assert random.getstate() == state
    drawing = [
        name
        for name, module in sys.modules.items()
        if name.startswith("opentelemetry.exporter.") and getattr(module, "random", None) is random
    ]
    assert drawing == []


def test_what_comes_after_an_outage_arrives(sinks: Callable[..., ExporterSink]) -> None:
    """A receiver that comes back gets the queued spans; a healthy group that failed is not sent again."""
    gate = Gate()
    gate.works = False
    sink = sinks(gate, first_pause_s=60.0)
    sink.emit(group(1, 10))
    until(lambda: sink.dropped == 10)
    for first in range(101, 1_001, 100):
        sink.emit(group(first, 100))
    gate.works = True
    assert sink.flush(10)  # which does not wait for the end of the pause
    assert gate.ids == list(range(101, 1_001))
    assert sink.dropped == 10


def test_stall_evidence_overtakes_and_is_sent_again(sinks: Callable[..., ExporterSink]) -> None:
    """Evidence goes before healthy steps that have waited longer, and a failure does not lose it."""
    gate = Gate()
    gate.open.clear()
    sink = sinks(gate, first_pause_s=0.05)
    sink.emit(group(1, 2))
    until(lambda: gate.calls == 1)
    sink.emit(group(10, 2))
    sink.emit(group(20, 2), urgent=True)
    gate.works = False
    gate.open.set()
    until(lambda: gate.calls >= 3)
    gate.works = True
    assert sink.flush(10) or sink.flush(10)
    assert gate.ids == [20, 21, 10, 11]
    assert sink.dropped == 2


def test_evidence_that_is_refused_again_and_again_is_given_up(sinks: Callable[..., ExporterSink]) -> None:
    """A span that the receiver rejects for its content must not block all that follows."""
    gate = Gate()
    gate.refused = 1
    sink = sinks(gate, first_pause_s=0.001, longest_pause_s=0.001)
    sink.emit(group(1, 3), urgent=True)
    until(lambda: gate.calls > MAX_ATTEMPTS)
    assert sink.dropped == 0
    sink.emit(group(10, 2))
    sink.emit(group(20, 2), urgent=True)
    assert sink.flush(10) or sink.flush(10)
    assert sorted(gate.ids) == [10, 11, 20, 21]
    assert sink.dropped == 3


def test_evidence_outlives_an_outage_of_any_length(sinks: Callable[..., ExporterSink]) -> None:
    """Evidence is retried without limit: while nothing is accepted, failures do not show that its content is bad."""
    gate = Gate()
    gate.works = False
    sink = sinks(gate, max_spans=20, first_pause_s=0.001, longest_pause_s=0.001)
    for first in (1, 10):
        sink.emit(group(first, 3), urgent=True)
    for first in range(100, 200, 2):
        sink.emit(group(first, 2))
    until(lambda: gate.calls > 10 * MAX_ATTEMPTS)
    gate.works = True
    assert sink.flush(10) or sink.flush(10)
    assert sorted(gate.ids) == [1, 2, 3, 10, 11, 12]
    assert sink.dropped == 100


def test_the_rest_of_a_group_goes_with_the_portion_that_failed(sinks: Callable[..., ExporterSink]) -> None:
    """Children do not arrive without the anchor that was in the failed batch."""
    gate = Gate()
    gate.works = False
    sink = sinks(gate)
    sink.emit(group(1, 1_200))
    until(lambda: sink.dropped == 1_200)
    assert gate.calls == 1


def test_other_users_of_an_exporter_log_as_before(
    sinks: Callable[..., ExporterSink], caplog: pytest.LogCaptureFixture
) -> None:
    """Only logs of the sink's own thread are kept out of the log."""
    gate = Gate()
    gate.works = False
    sink = sinks(gate)
    gate.open.clear()
    sink.emit(group(1, 1))
    until(lambda: gate.calls == 1)
    logging.getLogger(__name__).error("the user's own exporter")
    gate.open.set()
    until(lambda: sink.dropped == 1)
    until(lambda: len(caplog.records) == 2)
    assert caplog.records[0].getMessage() == "the user's own exporter"
    assert "Failed to export: connection refused" in caplog.records[1].getMessage()


def test_reason_that_is_not_logged(sinks: Callable[..., ExporterSink], caplog: pytest.LogCaptureFixture) -> None:
    """Exporters of the SDK do not log what another one has logged; our warning has its reason all the same."""
    gate, silent = Gate(), logging.Filter("another")
    gate.works = False
    logging.getLogger(__name__).addFilter(silent)
    try:
        sinks(gate).emit(group(1, 1))
        until(lambda: caplog.messages)
    finally:
        logging.getLogger(__name__).removeFilter(silent)
    assert "Failed to export: connection refused" in caplog.text


def test_exports_are_not_instrumented_themselves(sinks: Callable[..., ExporterSink]) -> None:
    """Instrumentations of HTTP and gRPC clients see that our requests are to be ignored."""
    gate = Gate()
    sink = sinks(gate)
    sink.emit(group(1, 1))
    assert sink.flush(10)
    assert gate.calls == 1
    assert not gate.was_instrumented
    assert is_instrumentation_enabled()
    assert context.get_current() == {}


def test_no_thread_can_be_started(sinks: Callable[..., ExporterSink], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a process has begun to end before the exporter was built (Python 3.12), everything is still sent."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    exporter = Gate()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        sink = sinks(exporter)
        for first in (100, 200):
            sink.emit(group(first, 3))
        assert sink.flush(5.0)
    assert exporter.ids == [100, 101, 102, 200, 201, 202]
    sink.shutdown(5.0)
    assert (sink.dropped, exporter.shut_down) == (0, 1)


def test_shutdown_keeps_to_its_deadline_and_counts(sinks: Callable[..., ExporterSink]) -> None:
    """A hanging exporter does not delay the exit; what it did not take is counted; a second shutdown does no harm."""
    gate = Gate()
    gate.open.clear()
    sink = sinks(gate)
    sink.emit(group(1, 600))
    until(lambda: gate.calls == 1)
    sink.emit(group(1_001, 50))
    began, before = time.perf_counter(), core_waits_s()
    assert not sink.flush(0.1)
    sink.shutdown(0.3)
    assert time.perf_counter() - began < 2 + waited_for_a_core_s(since=before)
    sink.emit(group(2_001, 5))
    assert sink.dropped == 55
    assert gate.shut_down == 1
    sink.shutdown(0.3)
    assert gate.shut_down == 1
    gate.open.set()


class Retries(Gate):
    """An exporter that tries again until it is shut down, and is slow then too, as on a busy machine."""

    def shutdown(self) -> None:
        """Have it give up."""
        super().shutdown()
        threading.Timer(0.1, self.open.set).start()


def test_what_fails_as_it_is_closed_is_reported(
    sinks: Callable[..., ExporterSink], caplog: pytest.LogCaptureFixture
) -> None:
    """The first failure may come as late as that: the reason is logged, and what was not sent is counted."""
    exporter = Retries()
    exporter.works = False
    exporter.open.clear()
    sink = sinks(exporter)
    sink.emit(group(1, 7))
    until(lambda: exporter.calls == 1)
    sink.shutdown(0.1)
    assert sink.dropped == 7
    [record] = caplog.records[-1:]
    assert "spans cannot be exported (test exporter): Failed to export: connection refused." in record.getMessage()


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_receiver_that_refuses_a_part(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """Spans that a receiver rejects are counted each time and reported once, also over a new connection."""
    caplog.set_level(logging.WARNING, "otel_torchdist")
    with OtlpReceiver(protocol) as receiver:
        receiver.refused, receiver.message = 2, "quota exceeded\n12:00 forged"
        sink = ExporterSink(otlp_exporter(receiver), RESOURCE, "otlp")
        sink.emit(group(1, 3))
        assert sink.flush(10)
        assert sink.dropped == 2
        sink.emit(group(11, 1), urgent=True)
        assert sink.flush(10)
        assert sink.dropped == 3, "no more than were sent"
        receiver.stop()
        receiver.start()
        sink.emit(group(21, 4))
        until_exported = time.monotonic() + 20
        while len(receiver.spans()) < 8 and time.monotonic() < until_exported:
            sink.flush(5)
        sink.shutdown(5)
        assert len(receiver.spans()) == 8, "nothing is sent twice"
        assert sink.dropped == 5
    [refusal] = [text for text in caplog.messages if "has rejected" in text]
    assert "has rejected 2 of 3 spans" in refusal
    assert "'quota exceeded\\n12:00 forged'" in refusal


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_receiver_that_only_warns(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """A message without rejected spans is a warning from the receiver, and nothing is lost."""
    with OtlpReceiver(protocol) as receiver:
        receiver.message = "attribute names will be lower case"
        sink = ExporterSink(otlp_exporter(receiver), RESOURCE, "otlp")
        sink.emit(group(1, 3))
        assert sink.flush(10)
        sink.shutdown(5)
        assert sink.dropped == 0
    assert caplog.messages == ["the receiver of spans (otlp) warns: 'attribute names will be lower case'"]
