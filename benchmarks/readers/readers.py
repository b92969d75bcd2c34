"""Measures the agent's reader with ranks that record faster than it can read: lost records and processor time."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from opentelemetry._logs import NoOpLogger
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from benchmarks.readers.fast_ranks import CAPACITY, fast_ranks
from benchmarks.results.recorded import require_equal
from benchmarks.results.sections import Section
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.export.otlp import OtlpEncoder
from otel_torchdist.telemetry.export.outputs import Outputs
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

BUDGET: Final = 1_000
"""Default span budget, per second and rank."""
STALL_TIMEOUT_NS: Final = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """The load of the ranks.

    Attributes:
        ranks: Numbers of ranks; each is measured at every rate.
        rates: Operations per second of each rank.
        warm_up_s: Seconds before the measurement, in which the span budget learns the rate.
        length_s: Seconds of the measurement.
    """

    ranks: Sequence[int]
    rates: Sequence[int]
    warm_up_s: float
    length_s: float


USUAL: Final = Load(ranks=(1, 3), rates=(5_000, 20_000, 100_000), warm_up_s=3.0, length_s=10.0)
QUICK: Final = Load(ranks=(1,), rates=(100_000,), warm_up_s=0.3, length_s=0.6)


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one load.

    Attributes:
        ranks: Number of ranks.
        wanted: Requested operations per second of each rank.
        rate: Actual operations per second of each rank.
        read: Share of the operations that was read, from 0 to 1.
        lost: Number of records counted as lost.
        processor: Processor time of the reader, as a share of one core.
        per_record_us: Processor time per record read, in microseconds.
        longest_turn_s: Duration of the longest turn.
        spans: Spans per second and rank.
        native: Whether the native library has written the tapes.
    """

    ranks: int
    wanted: int
    rate: float
    read: float
    lost: int
    processor: float
    per_record_us: float
    longest_turn_s: float
    spans: float
    native: bool


class _EncodingSink:
    """A sink that encodes spans as an OTLP exporter does, without sending them."""

    def __init__(self) -> None:
        self.dropped = 0
        self.spans = 0
        self._encoder = OtlpEncoder(Resource.create())

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        self.spans += len(spans)
        self._encoder.encode(spans).SerializeToString()

    def flush(self, timeout_s: float) -> bool:
        return True

    def shutdown(self, timeout_s: float) -> None:
        pass


def measure(load: Load) -> Section:
    """Read tapes that ranks write at each rate.

    Raises:
        RuntimeError: A record was neither read nor counted as lost.
    """
    logging.getLogger("otel_torchdist").setLevel(
        logging.ERROR
    )  # the reader warns of lost records, which are expected here
    return _section([_read(ranks, rate, load) for ranks in load.ranks for rate in load.rates], load)


def _read(ranks: int, rate: int, load: Load) -> Reading:
    sink = _EncodingSink()
    outputs = Outputs(sink, ALWAYS_ON, (), NoOpLogger("benchmark"), meter_provider=None, serves_metrics=False)
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as directory:
        reader = Reader(outputs, BUDGET, StallWatch(StallRules(STALL_TIMEOUT_NS)))
        with fast_ranks(Path(directory), ranks, rate) as running:
            for tape in tapes_in(Path(directory)):
                reader.follow(TapeReader(tape))
            _turn_for(reader, load.warm_up_s)
            before, spans = _counted(reader), sink.spans
            began_s, used_s = time.monotonic(), time.thread_time()
            longest_s = _turn_for(reader, load.length_s)
            seconds, used_s = time.monotonic() - began_s, time.thread_time() - used_s
            after, spans = _counted(reader), sink.spans - spans
            calls, records = running.stop()
            reader.turn()
            reader.turn()
            entered, lost = _counted(reader)
        reader.close()
    require_equal(True, calls <= entered + lost <= records, "operations were read or counted as lost")
    read, missed = after[0] - before[0], after[1] - before[1]
    return Reading(
        ranks, rate, (read + missed) / seconds / ranks, read / max(read + missed, 1), missed, used_s / seconds,
        used_s / max(read, 1) * 1e6, longest_s, spans / seconds / ranks, running.native,
    )  # fmt: skip


def _turn_for(reader: Reader, seconds: float) -> float:
    """Poll the tapes as the agent does; return the duration of the longest poll."""
    end_s, longest_s = time.monotonic() + seconds, 0.0
    while (began_s := time.monotonic()) < end_s:
        reader.turn()
        longest_s = max(longest_s, time.monotonic() - began_s)
        time.sleep(reader.watch.next_check_s)
    return longest_s


def _counted(reader: Reader) -> tuple[int, int]:
    """Return the number of operations read and of records lost."""
    shown = reader.metrics.snapshot().ranks
    entered = sum(operation.entered for rank in shown for operation in rank.operations)
    return entered, sum(rank.records_lost for rank in shown)


def _section(readings: Sequence[Reading], load: Load) -> Section:
    writer = "the native library" if all(one.native for one in readings) else "Python: there is no native library"
    return Section(
        key="readers",
        title="Ranks that record faster than can be read",
        columns=[
            "ranks, operations a second",
            "read",
            "of a core",
            "µs per record",
            "longest turn",
            "spans/s·rank",
        ],
        rows=[
            [
                f"{one.ranks}, {one.rate:,.0f}",
                f"{one.read:.1%}",
                f"{one.processor:.0%}",
                f"{one.per_record_us:.1f}",
                f"{one.longest_turn_s * 1e3:.0f} ms",
                f"{one.spans:,.0f}",
            ]
            for one in readings
        ],
        notes=[
            f"Written by {writer}, in a ring of {CAPACITY:,} records. The reader takes a turn every 250 ms, in which a "
            "ring is overwritten by more than 65,000 records a second. What is not read is counted in "
            "torchdist_records_lost_total: operations that were read and records that were lost add up, or this fails.",
            "Spans: of a default budget of 1,000 a second and rank; without sending them.",
        ],
        goals=[],
        data={**asdict(load), "readings": [asdict(one) for one in readings]},
    )
