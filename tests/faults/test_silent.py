"""Calls that do not fit and give wrong results without a word: they are told though nothing stalls."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from otel_torchdist import semconv
from tests.cli.running import until
from tests.faults.faulty_job import FaultyJob

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
