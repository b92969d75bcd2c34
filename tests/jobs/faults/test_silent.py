"""Faults that stall nothing: calls that do not match and silently give wrong results, and stragglers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist import semconv
from tests.jobs.faults.faulty_job import FaultyJob
from tests.jobs.faults.outcome import observe_finding
from tests.jobs.faults.rows import ALL_VALUES, FINDING_VARIANTS, FINDINGS, NO_STALL, FindingRow, why_not_here
from tests.jobs.faults.tiers import params_of
from tests.support.commands.running import processes_of
from tests.support.waiting import until

DUE_S = 15.0
AFTER_THE_END_S = 5.0
"""Two for the comparison, the rest for the export on a loaded machine."""
GOOD_STEPS_S = 5.0
"""They take a second and a half, and more on a loaded machine."""


@pytest.mark.parametrize("row", params_of(FINDINGS, FINDING_VARIANTS))
def test_finding(row: FindingRow, start: Callable[..., FaultyJob]) -> None:
    """In a job that goes on, the fault is reported once, in time, with its ranks, and no stall is reported."""
    if why_not_here(row.name):
        pytest.skip(why_not_here(row.name))
    job = start(row.name, ranks=row.size, environ=NO_STALL | row.environ)
    job.wait_until_watched()
    began = time.monotonic()
    outcome = observe_finding(row, job)
    assert time.monotonic() - began <= GOOD_STEPS_S + DUE_S
    job.open_gate()
    assert [done.code for done in job.join()] == [0] * row.size
    assert outcome.problems == (), outcome.sentence
    assert len(job.findings()) == 1
    assert job.roots() == []


@pytest.mark.thorough
def test_actions_on_a_finding(start: Callable[..., FaultyJob], tmp_path: Path) -> None:
    """A command of the user's runs once, with the finding; evidence is written; the training goes on."""
    said, dumps = tmp_path / "said", tmp_path / "dumps"
    command = f"sh -c 'echo $TORCHDIST_STALL_VERDICT $TORCHDIST_STALL_RANKS >> {said}'"
    actions = {
        **NO_STALL,
        "OTEL_PYTHON_TORCHDIST_NUMERICS": "all",
        "OTEL_PYTHON_TORCHDIST_DUMP_DIR": str(dumps),
        "OTEL_PYTHON_TORCHDIST_ON_FINDING": f"dump,command:{command}",
    }
    job = start("nan", environ=actions)
    until(said.exists, 60)
    until(lambda: list(dumps.glob("*.tar.gz")), 30)
    job.open_gate()
    assert [done.code for done in job.join()] == [0, 0, 0]
    assert said.read_text() == "non_finite 2\n"
    assert len(list(dumps.glob("*.tar.gz"))) == 1


@pytest.mark.thorough
def test_healthy_values(start: Callable[..., FaultyJob]) -> None:
    """Where every operation is looked at and every result is compared, a healthy job has no finding."""
    job = start("nan", "healthy", environ={**ALL_VALUES, "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0"})
    assert [done.code for done in job.join()] == [0, 0, 0]
    until(lambda: not processes_of(job.base), 40)
    assert (job.findings(), job.roots()) == ([], [])


@pytest.mark.thorough
def test_what_a_straggler_costs(start: Callable[..., FaultyJob]) -> None:
    """A rank that computes for 82 ms where the others take 63 costs them about a fifth of their time."""
    job = start("straggler", environ=NO_STALL)
    outcome = observe_finding(FINDINGS[-1], job)
    job.open_gate()
    job.join()
    [found] = job.findings()
    assert 0.1 < found.attributes[semconv.STRAGGLER_SHARE] < 0.4, outcome.sentence
    assert 0.013 < found.attributes[semconv.STRAGGLER_LATENESS] < 0.06


@pytest.mark.parametrize(("fault", "codes"), [("short_dtype", {0}), ("failing_dtype", {1, -9})])
def test_finding_of_a_job_that_is_over(start: Callable[..., FaultyJob], fault: str, codes: set[int]) -> None:
    """Whether the job ends well or fails, a mismatch is reported within two seconds of its end."""
    job = start(fault, environ=NO_STALL)
    assert {done.code for done in job.join()} == codes
    ended = time.monotonic()
    until(job.findings)
    assert time.monotonic() - ended <= AFTER_THE_END_S
    [found] = job.findings()
    assert found.attributes[semconv.VERDICT_RANKS] == "2", found.error
    assert [root.attributes[semconv.VERDICT] for root in job.roots() if fault == "short_dtype"] == []
