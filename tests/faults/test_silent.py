"""Calls that do not fit and give wrong results without a word: they are told though nothing stalls."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from otel_torchdist import semconv
from tests.cli.running import until
from tests.faults.faulty_job import FaultyJob
from tests.support.otlp_receiver import ReceivedSpan

DUE_S = 15.0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("silent_dtype", "rank 2 has dtype int32 where ranks 0-1 have float32 in all_reduce"),
        ("silent_reduce_op", "rank 2 has reduce op max where ranks 0-1 have sum in all_reduce"),
    ],
)
def test_wrong_results_are_told(start: Callable[..., FaultyJob], fault: str, said: str) -> None:
    """One odd call in a job that goes on: field and rank are told once, in time, and no stall is."""
    job = start(fault)
    began = time.monotonic()

    def findings() -> list[str]:
        return [span.error or "" for span in job.receiver.spans() if span.name == "finding: all_reduce (mismatched)"]

    until(findings, 60)
    # The good steps before take a second and a half, and starting the ranks some more.
    assert time.monotonic() - began <= DUE_S + 10
    [finding] = findings()
    assert finding.startswith(said)
    [span] = [span for span in job.receiver.spans() if span.name.startswith("finding")]
    assert span.attributes[semconv.VERDICT_RANKS] == "2"
    assert job.roots() == []
    job.open_gate()
    assert [done.code for done in job.join()] == [0, 0, 0]


def test_straggler(start: Callable[..., FaultyJob]) -> None:
    """A rank that computes for 30 % longer than the others is named, with what they lose, and there is no stall."""
    job = start("straggler")

    def findings() -> list[ReceivedSpan]:
        return [span for span in job.receiver.spans() if span.name == "finding: all_reduce (straggler)"]

    until(findings, 60)
    job.open_gate()
    assert [done.code for done in job.join()] == [0, 0, 0]
    [found] = findings()
    assert found.attributes[semconv.VERDICT_RANKS] == "2"
    assert 0.1 < found.attributes[semconv.STRAGGLER_SHARE] < 0.4  # 6 of 26 ms and more
    assert "rank 2 is a straggler" in (found.error or "")
    assert job.roots() == []
