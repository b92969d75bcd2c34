"""Measures the speed of reading tapes, and the cost of each stage. Reading happens outside the training's threads."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from opentelemetry._logs import NoOpLogger
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from benchmarks.readers.busy_tape import CALLS_PER_STEP, BusyTape
from benchmarks.results.sections import Section
from benchmarks.results.spread import Spread
from benchmarks.stopwatch import time_of
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.export.otlp import OtlpEncoder
from otel_torchdist.telemetry.export.outputs import Outputs
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from otel_torchdist.telemetry.spans.sampling import StepSampler
from otel_torchdist.telemetry.spans.steps import RankSpans

ALL_SPANS: Final = 1 << 40
"""A span budget that is never used up."""
STALL_TIMEOUT_NS: Final = 10_000_000_000

NOTE: Final = (
    "One thread, one tape; half of the calls are synchronous. Each row does what the row above does, and more. Every "
    "call becomes a span here; in use a budget bounds that, by default to 1,000 a second and rank."
)


@dataclass(frozen=True, slots=True)
class Portions:
    """The portions to read.

    Attributes:
        count: Number of portions; every stage reads each of them.
        calls: Calls per portion.
    """

    count: int
    calls: int


USUAL: Final = Portions(count=31, calls=2_000)
QUICK: Final = Portions(count=3, calls=200)


class _NullSink:
    """A sink that discards spans."""

    def __init__(self) -> None:
        self.dropped = 0
        self.spans = 0

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        self.spans += len(spans)

    def flush(self, timeout_s: float) -> bool:
        return True

    def shutdown(self, timeout_s: float) -> None:
        pass


class _EncodingSink(_NullSink):
    """A sink that encodes spans as an OTLP exporter does, without sending them."""

    def __init__(self) -> None:
        super().__init__()
        self._encoder = OtlpEncoder(Resource.create())
        self.bytes = 0

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        super().emit(spans)
        self.bytes += len(self._encoder.encode(spans).SerializeToString())


def measure(portions: Portions) -> Section:
    """Let every stage read the same portions of one tape in turn."""
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as directory:
        tape = BusyTape(Path(directory))
        stages = _stages(tape)
        records = portions.calls + portions.calls // CALLS_PER_STEP
        times: dict[str, list[float]] = {name: [] for name in stages}
        for _ in range(portions.count):
            tape.write(portions.calls)
            for name, read in stages.items():
                times[name].append(_microseconds(read) / records)
    return _section(times, portions)


def _stages(tape: BusyTape) -> dict[str, Callable[[], object]]:
    encoding = _EncodingSink()
    return {
        "poll": _reading(tape),
        "+ metrics": _reading(tape, metrics=True),
        "+ spans": _reading(tape, metrics=True, sink=_NullSink()),
        "+ OTLP encoding": _reading(tape, metrics=True, sink=encoding),
        "+ stall watch: the whole reader": _whole_reader(tape),
    }


def _reading(tape: BusyTape, metrics: bool = False, sink: _NullSink | None = None) -> Callable[[], object]:
    """Return a new reader, and its work at each poll."""
    reader = TapeReader.of_writer(tape.writer)
    rank_metrics = NodeMetrics().track(reader) if metrics else None
    spans = RankSpans(reader, sink, StepSampler(ALWAYS_ON, ALL_SPANS, 0, 8)) if sink else None

    def read() -> Batch:
        now_ns = time.monotonic_ns()
        batch = reader.poll()
        if rank_metrics is not None:
            rank_metrics.consume(batch, reader.status(), now_ns)
        if spans is not None:
            spans.consume(batch, reader.status(), now_ns)
        return batch

    return read


def _whole_reader(tape: BusyTape) -> Callable[[], object]:
    events = NoOpLogger("benchmark")
    outputs = Outputs(_EncodingSink(), ALWAYS_ON, (), events, meter_provider=None, serves_metrics=False)
    reader = Reader(outputs, ALL_SPANS, StallWatch(StallRules(STALL_TIMEOUT_NS)))
    reader.follow(TapeReader.of_writer(tape.writer))
    return reader.turn


def _microseconds(read: Callable[[], object]) -> float:
    gc.collect()
    return time_of(read).own / 1000


def _section(times: dict[str, list[float]], portions: Portions) -> Section:
    spreads = {name: Spread.of(microseconds) for name, microseconds in times.items()}
    data: dict[str, Any] = {name: {"rounds": times[name], **asdict(spread)} for name, spread in spreads.items()}
    return Section(
        key="reading",
        title="Reading a tape",
        columns=["", "µs per record", "records per second"],
        rows=[[name, str(spread), f"{1e6 / spread.median:,.0f}"] for name, spread in spreads.items()],
        notes=[NOTE],
        goals=[],
        data={"unit": "µs per record", **asdict(portions), "stages": data},
    )
