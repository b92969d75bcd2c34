"""A reader in a process of its own, bound with all its threads to one core, and its processor time."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from benchmarks.readers.busy_tape import CALLS_PER_STEP, BusyTape
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.export.environment import environment_resource
from otel_torchdist.telemetry.export.exporter_sink import ExporterSink
from otel_torchdist.telemetry.export.outputs import outputs_from_environment
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan, SpanSink

ALL_SPANS: Final = 1 << 40
"""A budget of spans per second that is never used up."""
STALL_TIMEOUT_NS: Final = 10_000_000_000
FLUSH_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Portions:
    """How much is read.

    Attributes:
        count: Portions; each is read by every reader in turn.
        calls: Calls in a portion, no more than fit into the queue for spans.
    """

    count: int
    calls: int

    @property
    def records(self) -> int:
        """Calls and ends of steps in a portion."""
        return self.calls + self.calls // CALLS_PER_STEP


@dataclass(frozen=True, slots=True)
class Setting:
    """Configuration of one of the readers.

    Attributes:
        environment: OpenTelemetry's variables.
        is_encoded_by_sdk: Whether the exporter gets the SDK's spans and encodes them by the SDK's own means.
    """

    environment: Mapping[str, str]
    is_encoded_by_sdk: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of the readers.

    Attributes:
        microseconds: Processor time per record of each portion, by reader.
        spans: Spans that all of them have exported.
        dropped: Spans that they could not export.
    """

    microseconds: Mapping[str, Sequence[float]]
    spans: int
    dropped: int


def read_on_one_core(settings: Mapping[str, Setting], portions: Portions) -> Answer:
    """Let readers read the same portions of one tape in turn, export the resulting spans, and wait for that.

    Raises:
        EOFError: The process failed; it has printed why.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, settings, portions), daemon=True)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(connection: Connection, settings: Mapping[str, Setting], portions: Portions) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as directory:
        tape = BusyTape(Path(directory))
        readers = {name: _Reader(tape, setting) for name, setting in settings.items()}
        times: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(portions.count):
            tape.write(portions.calls)
            for name, reader in readers.items():
                times[name].append(reader.read() / portions.records / 1000)
        for reader in readers.values():
            reader.close()
    sinks = [reader.sink for reader in readers.values()]
    connection.send(Answer(times, sum(sink.spans for sink in sinks), sum(sink.dropped for sink in sinks)))


class _Reader:
    """The whole reader, set up as in an agent; only the server of `/metrics` is missing."""

    def __init__(self, tape: BusyTape, setting: Setting) -> None:
        os.environ.update(setting.environment)
        outputs = outputs_from_environment()
        self.sink = _CountingSink(outputs.sink)
        if setting.is_encoded_by_sdk:
            outputs.sink.shutdown(FLUSH_S)
            self.sink = _CountingSink(ExporterSink(_EncodedBySdk(), environment_resource(), "the SDK's encoder"))
        for name in setting.environment:
            del os.environ[name]
        self._reader = Reader(
            dataclasses.replace(outputs, sink=self.sink), ALL_SPANS, StallWatch(StallRules(STALL_TIMEOUT_NS))
        )
        self._reader.follow(TapeReader.of_writer(tape.writer))

    def read(self) -> int:
        """Read what is new and export it; returns nanoseconds of processor time, of all threads."""
        gc.collect()
        started = time.process_time_ns()
        self._reader.turn()
        self.sink.flush(FLUSH_S)
        return time.process_time_ns() - started

    def close(self) -> None:
        """Export the rest."""
        self._reader.close()


class _EncodedBySdk(OTLPSpanExporter):
    """Defined outside the SDK's modules, so that it gets the SDK's spans, as any exporter chosen by a user does."""


class _CountingSink:
    """Counts the spans that it passes on."""

    def __init__(self, sink: SpanSink) -> None:
        self.spans = 0
        self._sink = sink

    @property
    def dropped(self) -> int:
        return self._sink.dropped

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        self.spans += len(spans)
        self._sink.emit(spans, urgent)

    def flush(self, timeout_s: float) -> bool:
        return self._sink.flush(timeout_s)

    def shutdown(self, timeout_s: float) -> None:
        self._sink.shutdown(timeout_s)
