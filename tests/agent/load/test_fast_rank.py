"""A rank that records 100,000 operations a second, natively: more than is read, and all of that is accounted for."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry._logs import NoOpLogger
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.export.outputs import Outputs
from otel_torchdist.telemetry.metrics.snapshots import RankSnapshot
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.support.native.native_library import native_cache
from tests.support.ranks import fast_rank
from tests.support.tapes.tapes import start

pytestmark = pytest.mark.thorough

CAPACITY = 16_384
"""The ring's default size."""
BUDGET = 1_000
QUARTER = 25_000
"""Operations between two turns of the reader, which come every quarter of a second."""
TURNS = 16
MEASURED = 6
"""Turns after which the span budget has measured the rate for the first time."""
STALL_S = 0.3


class CountingSink:
    """Takes spans, and remembers when they ended, by the rank's clock."""

    def __init__(self) -> None:
        self.dropped = 0
        self.spans: list[FinishedSpan] = []

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """Take spans."""
        self.spans += spans

    def flush(self, timeout_s: float) -> bool:
        """Nothing waits."""
        return True

    def shutdown(self, timeout_s: float) -> None:
        """Nothing to stop."""


class Burst:
    """The rank's process, and the reader of its tape."""

    def __init__(self, directory: Path) -> None:
        library = native_cache() / "otel-torchdist" / "native"
        self._process = start(Path(fast_rank.__file__), directory, library, CAPACITY)
        self.path = Path(self._answer())
        self.sink = CountingSink()
        outputs = Outputs(self.sink, ALWAYS_ON, (), NoOpLogger("test"), meter_provider=None, serves_metrics=False)
        self.reader = Reader(outputs, BUDGET, StallWatch(StallRules(round(STALL_S * 1e9))))
        self.reader.follow(TapeReader(self.path))
        self.reader.turn()
        self.records = 0

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"the rank has ended with {self._process.poll()}"
        return line

    def send(self, command: str) -> None:
        """Make the rank do something, and wait until it has."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        self.records = int(self._answer())

    @property
    def shown(self) -> RankSnapshot:
        """The rank in the metrics."""
        [rank] = self.reader.metrics.snapshot().ranks
        return rank

    def close(self) -> None:
        """End everything."""
        self._process.kill()
        self._process.communicate()
        self.reader.close()


@pytest.fixture
def burst(tmp_path: Path) -> Iterator[Burst]:
    """A rank and its reader."""
    burst = Burst(tmp_path)
    yield burst
    burst.close()


def check_account(burst: Burst, calls: int) -> None:
    """Each record was counted as an operation, as the end of a step, or as lost; the last sequence is right."""
    [operations] = burst.shown.operations
    [group] = burst.shown.groups
    assert operations.entered <= calls
    assert operations.message_bytes == operations.entered * fast_rank.BYTES
    marks = burst.records - calls
    read = operations.entered + burst.shown.records_lost
    assert calls <= read <= calls + marks  # the ends of steps are read or lost, too
    assert group.started_sequence == calls


@pytest.mark.parametrize("slow_s", [60.0, 0.0], ids=["in time", "behind"])
def test_what_is_not_read_is_counted(burst: Burst, slow_s: float, caplog: pytest.LogCaptureFixture) -> None:
    """Between two turns the rank laps the ring: what is lost is counted, spans keep to the budget, one warning says so.

    A reader that falls behind reads an eighth of the ring a turn; the account is the same.
    """
    burst.reader.slow_s = slow_s
    before = 0
    with caplog.at_level(logging.WARNING, "otel_torchdist"):
        for turn in range(TURNS):
            burst.send(f"burst {QUARTER}")
            burst.reader.turn()
            check_account(burst, (turn + 1) * QUARTER)
            if turn == MEASURED:
                before = len(burst.sink.spans)
    [operations] = burst.shown.operations
    share = operations.entered / (TURNS * QUARTER)
    assert share < (0.65 if slow_s else 0.15)
    assert operations.in_flight == 0
    seconds = (TURNS - MEASURED) * QUARTER * fast_rank.EVERY_NS / 1e9
    assert 0 < len(burst.sink.spans) - before < 2 * BUDGET * seconds
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("rank 0 records operations faster than they can be read: ")


def test_an_open_operation_is_never_passed_over(burst: Burst) -> None:
    """An operation that another thread's calls have left far behind is seen as in flight, and its end is, too."""
    burst.reader.slow_s = 0.0
    burst.send(f"burst {QUARTER}")
    burst.reader.turn()
    burst.send("hang")
    for _ in range(2):  # in the second one the ring laps it
        lost = burst.shown.records_lost
        burst.send(f"burst {CAPACITY - CAPACITY // 4}")
        burst.reader.turn()
        [operations] = burst.shown.operations
        assert operations.in_flight == 1
        assert burst.shown.records_lost > lost
    burst.send("go on")
    burst.send(f"burst {CAPACITY - CAPACITY // 4}")
    burst.reader.turn()
    [operations] = burst.shown.operations
    assert operations.in_flight == 0


def test_a_reader_catches_up(burst: Burst) -> None:
    """As soon as the rank is slow enough again, every record is read."""
    burst.reader.slow_s = 0.0
    for _ in range(3):
        burst.send(f"burst {QUARTER}")
        burst.reader.turn()
    burst.reader.slow_s = math.inf
    burst.send("burst 2000")
    burst.reader.turn()
    lost = burst.shown.records_lost
    for _ in range(4):
        burst.send("burst 10000")
        burst.reader.turn()
    assert burst.shown.records_lost == lost
