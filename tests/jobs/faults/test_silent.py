"""Faults that stall nothing: calls that do not match and silently give wrong results, and stragglers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from otel_torchdist import semconv
from tests.jobs.faults.faulty_job import FaultyJob
from tests.jobs.faults.outcome import observe_finding
from tests.jobs.faults.rows import FINDING_ROWS, FindingRow, why_not_here
from tests.support.waiting import until

DUE_S = 15.0
AFTER_THE_END_S = 5.0
"""Two for the comparison, the rest for the export on a loaded machine."""
GOOD_STEPS_S = 5.0
"""They take a second and a half, and more on a loaded machine."""


@pytest.mark.parametrize("row", FINDING_ROWS, ids=[row.title for row in FINDING_ROWS])
def test_finding(row: FindingRow, start: Callable[..., FaultyJob]) -> None:
    """In a job that goes on, the fault is reported once, in time, with its ranks, and no stall is reported."""
    if why_not_here(row.name):
        pytest.skip(why_not_here(row.name))
    job = start(row.name, environ=row.environ)
    job.wait_until_watched()
    began = time.monotonic()
    outcome = observe_finding(row, job)
    assert time.monotonic() - began <= GOOD_STEPS_S + DUE_S
    job.open_gate()
    assert [done.code for done in job.join()] == [0, 0, 0]
    assert outcome.problems == (), outcome.sentence
    assert len(job.findings()) == 1
    assert job.roots() == []


def test_what_a_straggler_costs(start: Callable[..., FaultyJob]) -> None:
    """A rank that computes for 26 ms where the others take 20 costs them about a fifth of their time."""
    job = start("straggler")
    outcome = observe_finding(FINDING_ROWS[-1], job)
    job.open_gate()
    job.join()
    [found] = job.findings()
    assert 0.1 < found.attributes[semconv.STRAGGLER_SHARE] < 0.4, outcome.sentence
    assert 0.004 < found.attributes[semconv.STRAGGLER_LATENESS] < 0.02


@pytest.mark.parametrize(("fault", "codes"), [("short_dtype", {0}), ("failing_dtype", {1, -9})])
def test_finding_of_a_job_that_is_over(start: Callable[..., FaultyJob], fault: str, codes: set[int]) -> None:
    """Whether the job ends well or fails, a mismatch is reported within two seconds of its end."""
    job = start(fault)
    assert {done.code for done in job.join()} == codes
    ended = time.monotonic()
    until(job.findings)
    assert time.monotonic() - ended <= AFTER_THE_END_S
    [found] = job.findings()
    assert found.attributes[semconv.VERDICT_RANKS] == "2", found.error
    assert [root.attributes[semconv.VERDICT] for root in job.roots() if fault == "short_dtype"] == []
