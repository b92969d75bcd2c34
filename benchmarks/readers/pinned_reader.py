"""Measures the processor time of a reader in a child process, with all threads bound to one core."""

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
"""A span budget that is never used up."""
STALL_TIMEOUT_NS: Final = 10_000_000_000
FLUSH_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Portions:
    """The portions to read.

    Attributes:
        count: Number of portions; every reader reads each of them.
        calls: Calls per portion; at most the size of the span queue.
    """

    count: int
    calls: int

    @property
    def records(self) -> int:
        """Number of calls and ends of steps in a portion."""
        return self.calls + self.calls // CALLS_PER_STEP


@dataclass(frozen=True, slots=True)
class Setting:
    """The configuration of a reader.

    Attributes:
        environment: OpenTelemetry's variables.
        is_encoded_by_sdk: Whether the SDK's encoder encodes the SDK's spans.
    """

    environment: Mapping[str, str]
    is_encoded_by_sdk: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of the readers.

    Attributes:
        microseconds: Processor time per record of each portion, by reader.
        spans: Number of spans exported by all readers.
        dropped: Number of spans that could not be exported.
    """

    microseconds: Mapping[str, Sequence[float]]
    spans: int
    dropped: int


def read_on_one_core(settings: Mapping[str, Setting], portions: Portions) -> Answer:
    """Let readers read the same portions of one tape in turn, and export the spans; wait for the exports.

    Raises:
        EOFError: The process has failed and printed the reason.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
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
    """A complete reader as in an agent, without the `/metrics` server."""

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
        """Read and export the new records; return the processor time of all threads in nanoseconds."""
        gc.collect()
        started = time.process_time_ns()
        self._reader.turn()
        self.sink.flush(FLUSH_S)
        return time.process_time_ns() - started

    def close(self) -> None:
        """Export the remaining spans."""
        self._reader.close()


class _EncodedBySdk(OTLPSpanExporter):
    """An exporter that receives the SDK's spans, because it is not defined in the SDK's modules, like a user's."""


class _CountingSink:
    """A sink that counts the forwarded spans."""

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
