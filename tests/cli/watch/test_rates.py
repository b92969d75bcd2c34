"""The pace of a rank, from polls of its tape."""

from __future__ import annotations

import pytest

from otel_torchdist.cli.watch.passive import RateMeter, Rates
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.model.times import iso_time, length
from otel_torchdist.tape.reading.batch import Batch
from tests.support.tapes.made_records import made_operation

SECOND = 1_000_000_000


def operation(entered_s: float, flags: int = 0, kind: RecordKind = RecordKind.OPERATION) -> Operation:
    """An operation with few details."""
    return made_operation(1, round(entered_s * SECOND), kind=kind, flags=Flag(flags))


def test_rates_over_the_window() -> None:
    """Only steps and collectives of the last five seconds count, over any number of polls."""
    meter = RateMeter(begun_ns=0)
    old = Batch(entered=[operation(at) for at in range(60)], steps=[StepMark(1, at * SECOND, 0, 0) for at in range(60)])
    meter.observe(old, 60 * SECOND)
    assert meter.rates(60 * SECOND) == Rates(steps=4 / 5, collectives=4 / 5)
    others = [operation(61, Flag.POINT_TO_POINT), operation(61, kind=RecordKind.RENDEZVOUS)]
    meter.observe(Batch(entered=[operation(61), *others]), 61 * SECOND)
    assert meter.rates(61 * SECOND) == Rates(steps=4 / 5, collectives=1)
    meter.observe(Batch(), 66 * SECOND)
    assert meter.rates(66 * SECOND) == Rates(0, 1 / 5)


def test_rates_of_a_rank_that_has_just_begun() -> None:
    """Rates are not divided by time before the rank existed."""
    meter = RateMeter(begun_ns=10 * SECOND)
    meter.observe(Batch(entered=[operation(10.5), operation(11)]), 12 * SECOND)
    assert meter.rates(12 * SECOND) == Rates(0, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12 ms"),
        (8.14, "8.1 s"),
        (59.94, "59.9 s"),
        (125, "2 min 5 s"),
        (12_000, "3 h 20 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_length(seconds: float, text: str) -> None:
    """Two units at most."""
    assert length(seconds) == text


def test_iso_time() -> None:
    """In UTC, to the microsecond."""
    assert iso_time(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"
