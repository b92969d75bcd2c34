"""More spans than the receiver takes: what is left out, and what never is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opentelemetry._logs import NoOpLogger
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.model.names import GroupName
from otel_torchdist.telemetry.export.exporter_sink import ExporterSink
from otel_torchdist.telemetry.export.outputs import Outputs
from otel_torchdist.telemetry.metrics.snapshots import ShownVerdict
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan, SpanSink
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.tapes.fake_tape import FakeTape, signature

STALL_S = 0.3
OPERATIONS = 30
"""Operations in a step."""
STEPS = 20
ROUNDS = 6
QUEUE = 1_500
"""Spans: less than a fifth of those created."""
BOTH = GroupName("0", "dp", (0, 1), 0, "gloo", True)
ALONE = GroupName("1", "dp", (2,), 0, "gloo", True)


class BusyRank(FakeTape):
    """A rank whose clock is the real one."""

    def __init__(self, directory: Path, rank: int) -> None:
        super().__init__(directory, rank, world_size=3, capacity=16_384)
        self.entered = 0
        self._step = 0
        self._group = self.writer.names.intern(BOTH if rank in BOTH.ranks else ALONE)
        self._signature = self.writer.names.intern(signature("all_reduce"))

    def enter(self) -> Callable[[], object]:
        """Enter an all_reduce; returns a function that ends it."""
        self.entered += 1
        now_ns = time.monotonic_ns()
        number = self.writer.begin(
            now_ns, self._step, self.entered, 16, self._group, self._signature, 0, 0, -1, 0, 1, RecordKind.OPERATION, 0
        )
        return lambda: self.writer.complete(number, now_ns, time.monotonic_ns() + 1, How.CALL)

    def train(self, steps: int) -> None:
        """Train some steps."""
        for _ in range(steps):
            for _ in range(OPERATIONS):
                self.enter()()
            self.writer.step_ended(self._step, time.monotonic_ns(), self.entered)
            self._step += 1


class Emitted:
    """Records the spans that it passes on."""

    def __init__(self, sink: SpanSink) -> None:
        self.groups: list[tuple[frozenset[int], bool]] = []
        self._sink = sink

    @property
    def dropped(self) -> int:
        """Spans dropped by the other sink."""
        return self._sink.dropped

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """Record the spans and pass them on."""
        self.groups.append((frozenset(span.span_id for span in spans), urgent))
        self._sink.emit(spans, urgent)

    def flush(self, timeout_s: float) -> bool:
        """Flush the other sink."""
        return self._sink.flush(timeout_s)

    def shutdown(self, timeout_s: float) -> None:
        """Shut down the other sink."""
        self._sink.shutdown(timeout_s)


def turn_until(reader: Reader, condition: Callable[[], bool], busy: BusyRank) -> None:
    """Run the reader, and let a rank that is not in a stall keep training, until a condition holds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        busy.train(STEPS // 4)
        reader.turn()
        time.sleep(0.02)


def stall_on_metrics(reader: Reader) -> ShownVerdict | None:
    """What the metrics report of the only run."""
    [run] = reader.metrics.snapshot().runs.values()
    return run.stall


def test_whole_healthy_steps_go_and_neither_evidence_nor_metrics(tmp_path: Path, receiver: OtlpReceiver) -> None:
    """The receiver takes half a second for a request, ranks run at full speed, and one of them then stays away.

    Meanwhile a rank that depends on neither of the others trains on, so that the queue is always full.
    """
    receiver.delay_s = 0.5
    exporter = OTLPSpanExporter(endpoint=receiver.endpoint)
    sink = Emitted(ExporterSink(exporter, Resource({}), "test exporter", max_spans=QUEUE))
    outputs = Outputs(sink, ALWAYS_ON, (), NoOpLogger("test"), meter_provider=None, serves_metrics=False)
    reader = Reader(outputs, 1 << 40, StallWatch(StallRules(round(STALL_S * 1e9))))
    ranks = [BusyRank(tmp_path, rank) for rank in range(3)]
    for rank in ranks:
        reader.follow(rank.reader)
    for _ in range(ROUNDS):
        for rank in ranks:
            rank.train(STEPS)
        reader.turn()

    arrive = ranks[0].enter()
    turn_until(reader, lambda: any(span.name.startswith("stall: all_reduce") for span in receiver.spans()), ranks[2])
    assert stall_on_metrics(reader) is not None
    ranks[1].enter()()
    arrive()
    turn_until(reader, lambda: stall_on_metrics(reader) is None, ranks[2])
    receiver.delay_s = 0.0
    reader.close()

    spans = receiver.spans()
    received = {span.span_id for span in spans}
    assert len(received) == len(spans)
    assert {span.parent_id for span in spans if span.parent_id} <= received
    assert all(ids <= received or not ids & received for ids, _ in sink.groups)
    assert all(ids <= received for ids, urgent in sink.groups if urgent)
    assert any("(in progress)" in span.name for span in spans)

    lost = sum(len(ids) for ids, _ in sink.groups if not ids & received)
    assert reader.spans_dropped() == lost > 2_000
    for snapshot in reader.metrics.snapshot().ranks:
        [operations] = snapshot.operations
        assert operations.entered == operations.timed == ranks[snapshot.rank].entered
        assert snapshot.records_lost == 0
